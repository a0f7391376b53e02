// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <distx/comm/decorators/faulty.hpp>

#include <array>
#include <atomic>

#include "restarts.hpp"

using namespace std::chrono_literals;
using model::last_step;
using model::Of;
using model::options_of;
using model::Replicated;
using model::restart;
using model::Restarts;
using model::Trainer;
using model::WholeState;

namespace {

/// A rank that ends by an error in its call of that number.
struct Death {
  int rank;
  std::uint64_t call;
};

constexpr std::uint64_t unknown = UINT64_MAX;

/// How a training has continued.
struct Ending {
  std::atomic<int> begun{0};                                                  // trainings
  std::array<std::atomic<int>, 3> survivors{};                                // by recovery
  std::array<std::atomic<std::uint64_t>, 3> from{unknown, unknown, unknown};  // step
  std::array<WholeState, 3> recovered{};
  std::atomic<bool> same_step{true};
  WholeState ended{};
};

/// Trains like a user's loop, on fewer ranks after each death. Odd ranks have the optimizer's states in files.
template <class Training, class T, class Optimizer>
void train(Ending& ending, int ranks, int stage, const std::vector<std::vector<Death>>& deaths) {
  const auto faults = [&](std::size_t generation) {
    std::vector<distx::Fault> all;
    if (generation < deaths.size())
      for (const auto& [rank, call] : deaths[generation])
        all.push_back({.kind = distx::Fault::Kind::error, .rank = rank, .first = call});
    return all;
  };
  distx::spawn(distx::threads(ranks, 20s), [&](distx::ThreadConnector& connector) {
    std::size_t recoveries = 0;
    distx::Faulty comm(distx::ThreadCommunicator(connector, 20s), faults(0));
    auto options = options_of(stage);
    if (comm.rank() % 2 == 1) options.state_folder = std::filesystem::temp_directory_path().string();
    Trainer<Training, T> trainer(comm, Optimizer{}, options);
    ++ending.begun;
    bool lost = false;
    for (std::uint64_t step = 0;;) try {
        if (lost) {
          connector = connector.shrink(20s);
          ++recoveries;
          comm = distx::Faulty(distx::ThreadCommunicator(connector, 20s), faults(recoveries));
          const auto before = step;
          step = trainer.recover(comm);
          lost = false;
          if (step != before && step != before + 1) ending.same_step = false;
          std::uint64_t first = unknown;
          if (!ending.from.at(recoveries).compare_exchange_strong(first, step) && first != step)
            ending.same_step = false;
          ++ending.survivors.at(recoveries);
          ending.recovered.at(recoveries).add(trainer.training().state());
        }
        if (step == last_step) break;
        trainer.step(step);
        ++step;
      } catch (const distx::Error& error) {
        if (!distx::is_rank_loss(error)) throw;
        lost = true;
      }
    ending.ended.add(trainer.training().state());
  });
}

}  // namespace

TEST_CASE_TEMPLATE(
    "after a rank has ended in any of its calls, training continues like a restart on the same number of ranks", Case,
    Of<Replicated, float, distx::AdamW, 2, 3, 4>, Of<Replicated, float, model::Signs, 3>,
    Of<model::Half, distx::bfloat16, distx::AdamW, 3>) {
  using Training = typename Case::Training;
  using T = typename Case::T;
  using Optimizer = typename Case::Optimizer;
  for (const int ranks : Case::ranks)
    for (int stage = 0; stage < 4; ++stage) {
      Restarts restarts;
      restart<Training, T, Optimizer>(restarts, ranks, ranks - 1, stage);
      for (std::uint64_t call = 0;; ++call) {
        const int victim = static_cast<int>(call) % ranks;
        INFO(ranks, " ranks, stage ", stage, ", rank ", victim, " ends in call ", call);
        Ending ending;
        try {
          train<Training, T, Optimizer>(ending, ranks, stage, {{{victim, call}}});
          CHECK(call > 20);
          break;
        } catch (const distx::RankFailure& failure) {
          CHECK(failure.failed_rank() == victim);
        }
        if (ending.begun == 0) continue;  // it ended before there was a training
        CHECK(ending.survivors[1] == ranks - 1);
        CHECK(ending.same_step);
        CHECK(ending.recovered[1] == restarts.loaded[ending.from[1]]);
        CHECK(ending.ended == restarts.ended[ending.from[1]]);
      }
    }
}

TEST_CASE("a second rank may end in any call of the recovery and of the steps after it") {
  constexpr int ranks = 4;
  constexpr std::uint64_t first_call = 22;
  for (int stage = 0; stage < 4; ++stage) {
    Restarts restarts;
    restart<Replicated, float, distx::AdamW>(restarts, ranks, ranks - 2, stage);
    int in_recovery = 0;
    for (std::uint64_t call = 0;; ++call) {
      INFO("stage ", stage, ", the second rank ends in call ", call);
      Ending ending;
      // Rank 0, and the rank that was rank 2 of 4: they do not hold each other's shares.
      CHECK_THROWS_AS((train<Replicated, float, distx::AdamW>(ending, ranks, stage, {{{0, first_call}}, {{1, call}}})),
                      distx::RankFailure);
      if (ending.survivors[2] == 0) {  // the training has ended before
        CHECK(ending.survivors[1] == ranks - 1);
        break;
      }
      CHECK(ending.survivors[2] == ranks - 2);
      CHECK(ending.same_step);
      if (ending.survivors[1] > 0 && ending.from[1] != ending.from[2]) continue;  // steps on three ranks
      ++in_recovery;
      CHECK(ending.recovered[2] == restarts.loaded[ending.from[2]]);
      CHECK(ending.ended == restarts.ended[ending.from[2]]);
    }
    CHECK(in_recovery > 5);
  }
}

TEST_CASE("a CheckpointError names the parameters that are lost with a rank and the next one") {
  for (int stage = 0; stage < 4; ++stage) {
    Ending ending;
    std::string message;
    try {
      train<Replicated, float, distx::AdamW>(ending, 4, stage, {{{1, 22}, {2, 22}}});
    } catch (const distx::RankFailure& failure) {
      message = failure.what();
    }
    INFO("stage ", stage);
    if (stage == 0) {
      CHECK(ending.survivors[1] == 2);
      continue;
    }
    CHECK(ending.survivors[1] == 0);
  }
  // The message, on a surviving rank.
  std::atomic<int> told{0};
  CHECK_THROWS_AS(
      distx::spawn(
          distx::threads(4, 20s),
          [&](distx::ThreadConnector& connector) {
            distx::ThreadCommunicator comm(connector, 20s);
            Trainer<Replicated> trainer(comm, distx::AdamW{}, options_of(2));
            try {
              trainer.step(0);
            } catch (const distx::Error& error) {  // a rank that has ended the step is lost already
              CHECK(distx::is_rank_loss(error));
            }
            if (connector.rank() == 1 || connector.rank() == 2) throw std::runtime_error("lost");
            auto two = connector.shrink(20s);
            distx::ThreadCommunicator left(two, 20s);
            try {
              (void)trainer.recover(left);
            } catch (const distx::CheckpointError& error) {
              const std::string& words = error.message();
              INFO(words);
              CHECK(words.starts_with("the shares of rank 1, which rank 2 held, are lost with both ranks: parts of '"));
              CHECK(words.find("'optim.state.") != std::string::npos);
              CHECK(words.ends_with("; resume from the last checkpoint"));
              ++told;
              CHECK_THROWS_AS(trainer.step(1), distx::InvalidState);
            }
          }),
      distx::RankFailure);
  CHECK(told == 2);
}

TEST_CASE("recover succeeds after it has failed any number of times") {
  constexpr int failures = 20;
  std::atomic<int> failed{0};
  WholeState before, after;
  distx::spawn(distx::threads(2, 20s), [&](distx::ThreadConnector& connector) {
    distx::ThreadCommunicator comm(connector, 20s);
    Trainer<Replicated> trainer(comm, distx::AdamW{}, options_of(2));
    trainer.step(0);
    before.add(trainer.training().state());
    // The last call of recover is the barrier that commits a version.
    std::uint64_t last = 0;
    for (bool over = false; !over; ++last) {
      try {  // a communicator that an exception destroys is revoked
        distx::Faulty faulty(comm.split(0, comm.rank()),
                             {{.kind = distx::Fault::Kind::error, .rank = 1, .first = last}});
        over = trainer.recover(faulty) == 1;
      } catch (const distx::Error&) {
      }
    }
    for (int i = 0; i < failures; ++i) {
      try {  // a communicator that an exception destroys is revoked
        distx::Faulty faulty(comm.split(0, comm.rank()),
                             {{.kind = distx::Fault::Kind::error, .rank = 1, .first = last - 2}});
        (void)trainer.recover(faulty);
      } catch (const distx::Error&) {
        ++failed;
      }
    }
    CHECK(trainer.recover(comm) == 1);
    after.add(trainer.training().state());
  });
  CHECK(failed == 2 * failures);
  CHECK(before == after);
}

TEST_CASE("the ledger counts three shards of weights and optimizer state, at stage 0 one copy of them") {
  for (int stage = 0; stage < 4; ++stage)
    model::on_ranks(4, [&](distx::ThreadCommunicator& comm) {
      std::vector<distx::Parameter<float>> parameters;
      parameters.emplace_back("weight", std::size_t{4096});
      Replicated training(comm, parameters, distx::AdamW{}, {.stage = stage});
      constexpr std::size_t bytes = 4096 * 4 * 3;  // a weight and two moments
      CHECK(training.memory().replicas.held == (stage == 0 ? bytes : 3 * bytes / 4 + bytes / 4));
    });
}
