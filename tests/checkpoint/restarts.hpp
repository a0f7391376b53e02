// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <deque>

#include "model.hpp"

// Trainings that are resumed on another number of ranks, which those that continue are compared with.
namespace model {

using Replicated = distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Replicate>;
using Half = distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Replicate, distx::Precision<distx::bfloat16>>;

inline constexpr std::uint64_t last_step = 3;  // step

inline distx::DataParallelOptions options_of(int stage) {
  return {.bucket_bytes = 1000, .stage = stage, .clip_norm = 3};
}

/// States of trainings on other ranks that have loaded the checkpoint of each step: then, and at the end.
struct Restarts {
  std::deque<WholeState> loaded, ended;
};

/// Trains on `ranks` ranks, and resumes from each step's checkpoint on `left` ranks.
template <class Training, class T, class Optimizer>
void restart(Restarts& restarts, int ranks, int left, int stage) {
  const Folder folder;
  on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
    Trainer<Training, T> trainer(comm, Optimizer{}, options_of(stage));
    for (std::uint64_t step = 0;; trainer.step(step++)) {
      distx::checkpoint::save(folder.path(), trainer.training(), {.step = step});
      if (step == last_step) break;
    }
  });
  for (std::uint64_t step = 0; step <= last_step; ++step) {
    auto& loaded = restarts.loaded.emplace_back();
    auto& ended = restarts.ended.emplace_back();
    char name[32];
    std::snprintf(name, sizeof name, "step-%012d", static_cast<int>(step));
    on_ranks(left, [&](distx::ThreadCommunicator& comm) {
      Trainer<Training, T> trainer(comm, Optimizer{}, options_of(stage), 7);
      distx::checkpoint::load(folder.path() / name, trainer.training());
      loaded.add(trainer.training().state());
      for (std::uint64_t next = step; next < last_step; ++next) trainer.step(next);
      ended.add(trainer.training().state());
    });
  }
}

template <class A, class B, class C, int... Ranks>
struct Of {
  using Training = A;
  using T = B;
  using Optimizer = C;
  static constexpr int ranks[] = {Ranks...};
};

}  // namespace model
