// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <deque>

#include "model.hpp"

namespace model {

/// Saves a training on each of its numbers (or meshes) of ranks at each stage, and loads each checkpoint on each of
/// them at each stage.
template <class Training>
void check_matrix() {
  struct Saved {
    Saved(const typename Training::Ranks& on, int at) : ranks(on), stage(at) {}

    typename Training::Ranks ranks;
    int stage;
    WholeState state{};
    Folder folder{};
  };
  std::deque<Saved> all;
  for (const auto& ranks : Training::ranks)
    for (int stage = 0; stage < 4; ++stage) all.emplace_back(ranks, stage);
  for (const auto& ranks : Training::ranks)
    on_ranks(Training::count(ranks), [&](distx::ThreadCommunicator& comm) {
      for (std::size_t i = 0; i < all.size(); ++i) {
        auto& [saving, stage, state, folder] = all[i];
        if (saving != ranks) continue;
        Training training(comm, ranks, stage, 300, 0.01f * static_cast<float>(i));
        for (std::uint64_t step = 0; step < 2; ++step) training.trainer.step(step);
        state.add(training.trainer.training().state());
        distx::checkpoint::save(folder.path(), training.trainer.training(), {.step = i + 1});
      }
    });
  std::size_t loads = 0;
  for (const auto& ranks : Training::ranks) {
    std::deque<std::pair<std::size_t, WholeState>> loaded(4 * all.size());
    on_ranks(Training::count(ranks), [&](distx::ThreadCommunicator& comm) {
      auto at = loaded.begin();
      for (int stage = 0; stage < 4; ++stage) {
        Training training(comm, ranks, stage, 1000, 7);
        training.trainer.step(3);
        for (const auto& saved : all) {
          const auto newest = *distx::checkpoint::latest(saved.folder.path());
          const auto step = distx::checkpoint::load(newest, training.trainer.training()).step;
          if (comm.rank() == 0) at->first = static_cast<std::size_t>(step) - 1;
          at++->second.add(training.trainer.training().state());
        }
      }
    });
    for (std::size_t i = 0; i < loaded.size(); ++i) {
      const std::size_t from = i % all.size();
      INFO("saved at stage ", all[from].stage, " on ", Training::count(all[from].ranks), " ranks, loaded at stage ",
           i / all.size(), " on ", Training::count(ranks));
      CHECK(loaded[i].first == from);
      CHECK(all[from].state == loaded[i].second);
      ++loads;
    }
  }
  CHECK(loads == 25 * 16);
}

}  // namespace model
