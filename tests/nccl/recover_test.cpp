// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Trainings in GPUs' memory that continue after a rank is lost.
#include <doctest/doctest.h>

#include <distx/checkpoint.hpp>

#include <atomic>
#include <latch>

#include "distx/distx.hpp"
#include "examples/temporary_folder.hpp"
#include "nccl/ranks.hpp"
#include "nccl/recovered_training.hpp"
#include "nccl/whole_arrays.hpp"

using nccl_test::last_step;
using nccl_test::make_step;
using nccl_test::model;
using nccl_test::on_ranks;
using nccl_test::Training;
using nccl_test::WholeArrays;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t unknown = UINT64_MAX;

/// Loads the checkpoint of step `from` of `ranks` ranks on `left` ranks; adds the state then, and at the end.
void restart(int ranks, int left, int stage, std::uint64_t from, WholeArrays& loaded, WholeArrays& ended) {
  const examples::TemporaryFolder folder;
  on_ranks(ranks, [&](auto& connector) {
    distx::NcclCommunicator comm(connector, nccl_test::options);
    auto parameters = model();
    Training training(comm, parameters, distx::AdamW{}, {.stage = stage});
    for (std::uint64_t step = 0; step < from; ++step) make_step(training, parameters, step, comm.rank());
    distx::checkpoint::save(folder.path(), training, {.step = from});
  });
  on_ranks(left, [&](auto& connector) {
    distx::NcclCommunicator comm(connector, nccl_test::options);
    auto parameters = model();
    Training training(comm, parameters, distx::AdamW{}, {.stage = stage});
    distx::checkpoint::load(*distx::checkpoint::latest(folder.path()), training);
    loaded.add(training);
    for (auto step = from; step < last_step; ++step) make_step(training, parameters, step, comm.rank());
    ended.add(training);
  });
}

/// How a training has continued.
struct Ending {
  std::atomic<int> recovered{0};
  std::atomic<std::uint64_t> from{unknown};
  std::atomic<bool> same_step{true};
  WholeArrays then{}, ended{};
};

/// Trains like a user's loop; `victim` ends by an error before its call of that number.
void train(Ending& ending, int ranks, int stage, int victim, std::uint64_t call) {
  std::latch constructed(ranks);
  on_ranks(ranks, [&](distx::ThreadConnector& connector) {
    const bool dies = connector.rank() == victim;
    std::uint64_t calls = 0;
    const auto at_call = [&] {
      if (dies && calls++ == call) throw std::runtime_error("this rank ends");
    };
    distx::NcclCommunicator comm(connector, nccl_test::options);
    auto parameters = model();
    Training training(comm, parameters, distx::AdamW{}, {.stage = stage, .offload = stage % 2 == 1});
    constructed.arrive_and_wait();  // the loss of a rank would end the others' constructors
    bool lost = false;
    for (std::uint64_t step = 0;;) try {
        if (lost) {
          connector = connector.shrink(20s);
          comm = distx::NcclCommunicator(connector, nccl_test::options);
          step = training.recover(comm);
          lost = false;
          std::uint64_t first = unknown;
          if (!ending.from.compare_exchange_strong(first, step) && first != step) ending.same_step = false;
          ++ending.recovered;
          ending.then.add(training);
        }
        if (step == last_step) break;
        make_step(training, parameters, step, comm.rank(), at_call);
        ++step;
      } catch (const distx::Error& error) {
        if (!distx::is_rank_loss(error)) throw;
        lost = true;
      }
    ending.ended.add(training);
  });
}

}  // namespace

TEST_CASE("training on GPUs continues after a rank has ended before any of its calls, like a restart") {
  constexpr int ranks = 3;
  for (int stage = 0; stage < 4; ++stage) {
    std::uint64_t recoveries = 0;
    std::array<WholeArrays, last_step + 1> loaded, ended;
    for (std::uint64_t step = 0; step <= last_step; ++step)
      restart(ranks, ranks - 1, stage, step, loaded.at(step), ended.at(step));
    for (std::uint64_t call = 0;; ++call) {
      const int victim = static_cast<int>(call) % ranks;
      INFO("stage ", stage, ", rank ", victim, " ends before call ", call);
      Ending ending;
      try {
        train(ending, ranks, stage, victim, call);
        CHECK(recoveries > 10);
        break;
      } catch (const distx::RankFailure& failure) {
        CHECK(failure.failed_rank() == victim);
      }
      CHECK(ending.recovered == ranks - 1);
      CHECK(ending.same_step);
      REQUIRE(ending.from <= last_step);
      CHECK(ending.then == loaded.at(ending.from));
      CHECK(ending.ended == ended.at(ending.from));
      ++recoveries;
    }
  }
}
