// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// More ranks than read each other's words: they arrive by a tree.
#include <doctest/doctest.h>

#include <atomic>

#include "comm/outcomes.hpp"

namespace {

using namespace std::chrono_literals;
using Comm = distx::ThreadCommunicator;
using test::outcomes;

constexpr int many[]{17, 33, 300};  // trees of two and three levels, some groups with one rank

float operand(int rank, int call) { return 1.0f / static_cast<float>(3 * rank + call + 1); }

TEST_CASE("many ranks reduce in rank order, call after call, blocking and asynchronous") {
  for (const int ranks : many) {
    CAPTURE(ranks);
    std::atomic<int> wrong{0};
    distx::spawn(ranks, [&](distx::ThreadConnector& connector) {
      Comm comm(connector, 1min);
      for (int call = 0; call < 5; ++call) {
        float expected = operand(0, call);
        for (int rank = 1; rank < ranks; ++rank) expected += operand(rank, call);
        float small = operand(comm.rank(), call);
        std::vector<float> large(1000, small);
        if (call % 2 == 0) {
          distx::all_reduce(comm, small, distx::sum);
          distx::all_reduce(comm, large, distx::sum);
        } else {
          distx::start_all_reduce(comm, large, distx::sum).wait();
          distx::all_reduce(comm, small, distx::sum);
        }
        if (small != expected || large != std::vector<float>(1000, expected)) ++wrong;
      }
    });
    CHECK(wrong == 0);
  }
}

TEST_CASE("many ranks: one that does not join is named") {
  std::atomic<bool> over{false};
  std::atomic<int> waiting{39};
  const auto all = outcomes(
      40,
      [&](Comm& comm) {
        distx::barrier(comm);  // from here on, all are about to begin the next call
        if (comm.rank() == 33) return over.wait(false);
        struct Ended {
          std::atomic<int>& count;
          std::atomic<bool>& last;
          ~Ended() {
            if (--count > 0) return;
            last = true;
            last.notify_all();
          }
        } const ended{waiting, over};
        distx::barrier(comm);
      },
      2s);
  int timeouts = 0;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (rank == 33) continue;
    CAPTURE(all[rank].words);
    timeouts += all[rank].type == "TimeoutError" ? 1 : 0;
    CHECK(all[rank].says("timed out after 2 s: rank 33 did not join"));
  }
  CHECK(timeouts >= 1);
}

TEST_CASE("many ranks: one that has left is named") {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<test::Outcome> all(40);
  distx::spawn(40, [&](distx::ThreadConnector& connector) {
    Comm comm(connector, 1min);
    if (comm.rank() != 17) all[static_cast<std::size_t>(comm.rank())] = test::outcome_of([&] { distx::barrier(comm); });
  });
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    CAPTURE(all[rank].words);
    if (rank != 17) CHECK(all[rank].says("rank 17 has destroyed its communicator"));
  }
  CHECK(std::chrono::steady_clock::now() - begin < 20s);
}

TEST_CASE("many ranks: calls that differ are a MismatchError on every rank") {
  const auto all = outcomes(
      40,
      [](Comm& comm) {
        std::vector<float> values(comm.rank() == 33 ? 2 : 1);
        distx::all_reduce(comm, values, distx::sum);
      },
      1min);
  for (const auto& outcome : all) {
    CAPTURE(outcome.words);
    CHECK(outcome.type == "MismatchError");
  }
}

}  // namespace
