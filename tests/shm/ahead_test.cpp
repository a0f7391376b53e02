// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// In small rooted collectives a rank returns once its own part is done; it is a bounded number of calls ahead of the
// others, its data stays valid, and a difference between the calls is found by the next calls.
#include <doctest/doctest.h>

#include <random>

#include "comm/outcomes.hpp"
#include "distx/shm.hpp"
#include "shm/forked.hpp"

namespace {

using namespace std::chrono_literals;
using Comm = distx::ShmCommunicator;
using test::Outcome;

constexpr int most_ahead = 15;  // calls

/// Runs `f(comm, order)` on thread ranks; `order` counts the events of the test.
template <class F>
std::vector<Outcome> outcomes_of(int ranks, F f, distx::Timeout deadline = 1min) {
  std::vector<Outcome> all(static_cast<std::size_t>(ranks));
  std::atomic<int> order{0};
  distx::spawn(distx::threads(ranks, 2min), [&](distx::ThreadConnector& connector) {
    Comm comm(connector, deadline);
    all[static_cast<std::size_t>(comm.rank())] = test::outcome_of([&] { f(comm, order); });
    connector.barrier();
  });
  return all;
}
void wait_for(const std::atomic<int>& order, int value) {
  if (distx::detail::wait_until(
          1min, [&] { return order >= value; }, [] { return false; }) != distx::detail::WaitEnd::ready)
    throw std::runtime_error("no rank has returned");
}

TEST_CASE("ranks that need nothing of the others return from small rooted collectives without them") {
  const auto all = outcomes_of(3, [](Comm& comm, std::atomic<int>& order) {
    const int me = comm.rank();
    const auto check = [&](int first, auto call) {
      // The ranks that need nothing enter first; the others follow only when those have returned.
      const bool ahead = first == me || (first < 0 && me != 0);
      const int ahead_ranks = first < 0 ? 2 : 1, before = order;
      distx::barrier(comm);
      if (!ahead) wait_for(order, before + ahead_ranks);
      call();
      if (ahead) ++order;
      distx::barrier(comm);
    };
    std::vector<int> one{me == 2 ? 7 : 0}, three{me == 1 ? 1 : 0, me == 1 ? 2 : 0, me == 1 ? 3 : 0};
    check(2, [&] { distx::broadcast(comm, one, 2); });
    CHECK(one[0] == 7);
    check(1, [&] { distx::scatter(comm, three, one, 1); });
    CHECK(one[0] == me + 1);
    std::vector<int> total(1), whole(3);
    check(-1, [&] { distx::reduce(comm, one, total, distx::sum, 0); });
    if (me == 0) CHECK(total[0] == 6);
    check(-1, [&] { distx::gather(comm, one, whole, 0); });
    if (me == 0) CHECK(whole == std::vector<int>{1, 2, 3});
    check(2, [&] { distx::start_broadcast(comm, one, 2).wait(); });
    CHECK(one[0] == 3);
  });
  for (const auto& outcome : all) CHECK_MESSAGE(outcome.type == "done", outcome.words);
}

TEST_CASE("a root is at most 15 calls ahead of the slowest rank, and waits for it up to the deadline") {
  int returned = 0;
  const auto all = outcomes_of(
      2,
      [&](Comm& comm, std::atomic<int>& order) {
        distx::barrier(comm);
        if (comm.rank() == 1) return wait_for(order, 1);
        const auto last = test::outcome_of([&] {
          for (int value = 0;; ++returned) distx::broadcast(comm, value, 0);
        });
        CHECK_MESSAGE(last.says("rank 1 did not join"), last.words);
        CHECK(last.type == "TimeoutError");
        ++order;
      },
      2s);
  CHECK(returned == most_ahead);
}

TEST_CASE("data of ranks that are ahead is valid until the others have read it") {
  for (const int size : {2, 3, 5}) {
    distx::spawn(distx::threads(size, 4min), [](distx::ThreadConnector& connector) {
      Comm comm(connector, 4min);
      const int me = comm.rank(), ranks = comm.size();
      const auto count = static_cast<std::size_t>(ranks);
      std::mt19937 calls(5), own(static_cast<unsigned>(me));  // the same calls on all ranks, other delays
      const auto value = [](int call, int rank) { return call * 16 + rank; };
      int wrong = 0;
      for (int call = 0; call < 3000; ++call) {
        const int root = static_cast<int>(calls() % count);
        // Tiny, in the slot, and larger than it.
        const std::size_t n = std::array<std::size_t, 5>{1, 9, 40, 400, 3000}[calls() % 5];
        const auto kind = calls() % 8;
        for (auto spin = own() % 8 == 0 ? own() % 20000 : 0; spin > 0; --spin)
          std::atomic_signal_fence(std::memory_order_seq_cst);
        std::vector<int> one(n, value(call, me)), result(n, -1), whole(n * count, -1);
        const auto expect = [&](const std::vector<int>& got, std::size_t begin, std::size_t length, int expected) {
          for (std::size_t i = begin; i < begin + length; ++i) wrong += got[i] != expected;
        };
        switch (kind) {
          case 0:
          case 1:
            distx::broadcast(comm, one, root);
            expect(one, 0, n, value(call, root));
            break;
          case 2:
          case 3:
            distx::reduce(comm, one, result, distx::max, root);
            if (me == root) expect(result, 0, n, value(call, ranks - 1));
            break;
          case 4:
            std::fill(whole.begin(), whole.end(), value(call, me));
            distx::scatter(comm, whole, result, root);
            expect(result, 0, n, value(call, root));
            break;
          case 5: {
            // Some blocks are small, some large; only the root gives counts.
            std::vector<std::size_t> counts(count);
            std::size_t all = 0;
            for (std::size_t r = 0; r < count; ++r) all += counts[r] = calls() % 2 == 0 ? n : calls() % 2000;
            one.assign(counts[static_cast<std::size_t>(me)], value(call, me));
            whole.assign(all, -1);
            if (me == root)
              distx::gather(comm, one, whole, root, counts);
            else
              distx::gather(comm, one, std::vector<int>(), root);
            std::size_t begin = 0;
            if (me == root)
              for (std::size_t r = 0; r < count; begin += counts[r++])
                expect(whole, begin, counts[r], value(call, static_cast<int>(r)));
            break;
          }
          case 6:
            distx::gather(comm, one, whole, root);
            if (me == root)
              for (int r = 0; r < ranks; ++r) expect(whole, n * static_cast<std::size_t>(r), n, value(call, r));
            break;
          default:
            distx::all_reduce(comm, one, result, distx::max);
            expect(result, 0, n, value(call, ranks - 1));
        }
      }
      CHECK(wrong == 0);
      distx::barrier(comm);
    });
  }
}

TEST_CASE("a difference that is found later is a MismatchError on every rank that names the first call that differs") {
  // Both ranks are roots of their broadcasts, and return.
  const auto all = outcomes_of(2, [](Comm& comm, std::atomic<int>&) {
    float value = 1;
    distx::broadcast(comm, value, comm.rank());
    for (int i = 0; i < 3; ++i) distx::reduce(comm, value, value, distx::sum, 1 - comm.rank());
    distx::barrier(comm);
  });
  for (const std::size_t rank : {0u, 1u}) {
    CAPTURE(all[rank].words);
    CHECK(all[rank].type == "MismatchError");
    CHECK(all[rank].says("in the broadcast called in line "));
    CHECK(all[rank].says("rank " + std::to_string(1 - rank) + " names rank " + std::to_string(1 - rank) + " as root"));
  }
}

TEST_CASE("ranks that never wait for each other's data find a difference within 16 calls") {
  std::array<int, 3> calls{};
  const auto all = outcomes_of(3, [&](Comm& comm, std::atomic<int>&) {
    float value = 1;
    for (int& call = calls[static_cast<std::size_t>(comm.rank())];; ++call)
      if (comm.rank() == 0)
        distx::broadcast(comm, value, 0);
      else
        distx::reduce(comm, value, value, distx::sum, 0);
  });
  for (const std::size_t rank : {0u, 1u, 2u}) {
    CAPTURE(all[rank].words);
    CHECK(all[rank].type == "MismatchError");
    CHECK(calls[rank] <= most_ahead + 1);
  }
}

TEST_CASE("a rank that is ahead throws MismatchError once, then RevokedError") {
  const auto all = outcomes_of(3, [](Comm& comm, std::atomic<int>& order) {
    float value = 1;
    if (comm.rank() == 1) {
      wait_for(order, 1);
      distx::broadcast(comm, value, 2);  // returns: it is the root
      ++order;
      distx::barrier(comm);
      return;
    }
    distx::broadcast(comm, value, 0);
    if (comm.rank() == 0) ++order;
    const auto first = test::outcome_of([&] { distx::barrier(comm); });
    CHECK_MESSAGE(first.type == "MismatchError", first.words);
    distx::barrier(comm);
  });
  CHECK_MESSAGE(all[0].type == "RevokedError", all[0].words);
  CHECK_MESSAGE(all[1].type == "MismatchError", all[1].words);
  CHECK_MESSAGE(all[2].type == "RevokedError", all[2].words);
}

TEST_CASE("a root may destroy its communicator before the others have read its data") {
  const auto ended = test::forked(3, [](test::ForkedConnector& connector, test::Board& board) {
    std::vector<int> values(100, connector.rank() == 1 ? 42 : 0);
    {
      Comm comm(connector, 60s);
      if (comm.rank() != 1) wait_for(board.steps, 1);
      distx::broadcast(comm, values, 1);
    }
    ++board.steps;
    return values == std::vector<int>(100, 42) ? 0 : 1;
  });
  CHECK(ended == std::vector<int>{0, 0, 0});
}

TEST_CASE("a root whose peer is killed throws RankFailure after at most 15 more calls") {
  const auto ended = test::forked(2, [](test::ForkedConnector& connector, test::Board&) {
    Comm comm(connector, 60s);
    int value = 0;
    distx::barrier(comm);
    if (comm.rank() == 1) ::raise(SIGKILL);
    for (int call = 0; call <= most_ahead; ++call) try {
        distx::broadcast(comm, value, 0);
      } catch (const distx::RankFailure& failure) {
        return failure.failed_rank() == 1 ? 0 : 1;
      }
    return 2;
  });
  CHECK(ended == std::vector<int>{0, 1000 + SIGKILL});
}

}  // namespace
