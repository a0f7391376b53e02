// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <distx/comm/decorators/faulty.hpp>

#include <atomic>
#include <deque>

#include "model.hpp"

using namespace std::chrono_literals;
using model::Folder;
using model::Trainer;
using model::WholeState;

namespace {

using Replicated = distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Replicate>;
using Half = distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Replicate, distx::Precision<distx::bfloat16>>;

constexpr std::uint64_t last = 3;  // step

distx::DataParallelOptions options_of(int stage) { return {.bucket_bytes = 1000, .stage = stage, .clip_norm = 3}; }

/// States of trainings on fewer ranks that have loaded the checkpoint of each step: then, and at the end.
struct Restarts {
  std::deque<WholeState> loaded, ended;
};

/// Trains on `ranks` ranks, and resumes from each step's checkpoint on `left` ranks.
template <class Training, class T, class Optimizer>
void restart(Restarts& restarts, int ranks, int left, int stage) {
  const Folder folder;
  model::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
    Trainer<Training, T> trainer(comm, Optimizer{}, options_of(stage));
    for (std::uint64_t step = 0;; trainer.step(step++)) {
      distx::checkpoint::save(folder.path(), trainer.training(), {.step = step});
      if (step == last) break;
    }
  });
  for (std::uint64_t step = 0; step <= last; ++step) {
    auto& loaded = restarts.loaded.emplace_back();
    auto& ended = restarts.ended.emplace_back();
    char name[32];
    std::snprintf(name, sizeof name, "step-%012d", static_cast<int>(step));
    model::on_ranks(left, [&](distx::ThreadCommunicator& comm) {
      Trainer<Training, T> trainer(comm, Optimizer{}, options_of(stage), 7);
      distx::checkpoint::load(folder.path() / name, trainer.training());
      loaded.add(trainer.training().state());
      for (std::uint64_t next = step; next < last; ++next) trainer.step(next);
      ended.add(trainer.training().state());
    });
  }
}

/// How a training has continued.
struct Ending {
  bool failed = false;
  std::atomic<int> begun{0};           // trainings
  std::atomic<std::uint64_t> from{0};  // step
  std::atomic<int> survivors{0};
  std::atomic<bool> same_step{true};
  WholeState recovered{}, ended{};
};

/// Trains while `victim` ends by an error in its call of that number, as a user's loop does.
template <class Training, class T, class Optimizer>
void train(Ending& ending, int ranks, int stage, int victim, std::uint64_t call) {
  try {
    distx::spawn(distx::threads(ranks, 20s), [&](distx::ThreadConnector& connector) {
      distx::Faulty whole(distx::ThreadCommunicator(connector, 20s),
                          {{.kind = distx::Fault::Kind::error, .rank = victim, .first = call}});
      std::optional<distx::ThreadCommunicator> comm;
      Trainer<Training, T> trainer(whole, Optimizer{}, options_of(stage));
      ++ending.begun;
      bool lost = false;
      for (std::uint64_t step = 0; step < last || lost;) try {
          if (lost) {
            connector = connector.shrink(20s);
            comm.emplace(connector, 20s);
            const auto before = step;
            step = trainer.recover(*comm);
            if (step != before && step != before + 1) ending.same_step = false;
            if (ending.survivors++ == 0) ending.from = step;
            ending.recovered.add(trainer.training().state());
            lost = false;
            if (ending.from != step) ending.same_step = false;
          }
          if (step == last) break;
          trainer.step(step);
          ++step;
        } catch (const distx::Error& error) {
          if (!distx::is_rank_loss(error)) throw;
          lost = true;
        }
      ending.ended.add(trainer.training().state());
    });
  } catch (const distx::RankFailure& failure) {
    CHECK(failure.failed_rank() == victim);
    ending.failed = true;
  }
}

}  // namespace

TEST_CASE_TEMPLATE_DEFINE(
    "after a rank has ended in any of its calls, training continues like a restart on the same number of ranks", Case,
    every_call) {
  using Training = typename Case::Training;
  using T = typename Case::T;
  using Optimizer = typename Case::Optimizer;
  for (const int ranks : {2, 3, 4})
    for (int stage = 0; stage < 4; ++stage) {
      Restarts restarts;
      restart<Training, T, Optimizer>(restarts, ranks, ranks - 1, stage);
      for (std::uint64_t call = 0;; ++call) {
        const int victim = static_cast<int>(call) % ranks;
        INFO(ranks, " ranks, stage ", stage, ", rank ", victim, " ends in call ", call);
        Ending ending;
        train<Training, T, Optimizer>(ending, ranks, stage, victim, call);
        if (!ending.failed) {
          CHECK(call > 20);
          break;
        }
        if (ending.begun == 0) continue;  // it ended before there was a training
        CHECK(ending.survivors == ranks - 1);
        CHECK(ending.same_step);
        CHECK(ending.recovered == restarts.loaded[ending.from]);
        CHECK(ending.ended == restarts.ended[ending.from]);
      }
    }
}

template <class A, class B, class C>
struct Of {
  using Training = A;
  using T = B;
  using Optimizer = C;
};
using Plain = Of<Replicated, float, distx::AdamW>;
TEST_CASE_TEMPLATE_INVOKE(every_call, Plain);
