// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A rank that destroys its communicator early ends the others' next calls, but not those that it has made.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <distx/distx.hpp>

#include "mpi/world.hpp"

using namespace distx;
using namespace std::chrono_literals;

namespace {

struct Way {
  bool started;
  std::size_t elements;
  MpiOptions options;

  [[nodiscard]] std::string text() const {
    return std::string(started ? "asynchronous, " : "blocking, ") + std::to_string(elements) + " elements" +
           (options.collectives == MpiCollectives::vendor ? ", by MPI's collectives" : "") +
           (options.check == Check::off ? ", not compared" : "");
  }
};

/// Blocking and asynchronous calls whose data travel with their descriptions, in pieces, and by MPI's collectives.
std::vector<Way> ways() {
  std::vector<Way> all;
  for (const bool started : {false, true})
    for (const std::size_t elements : {4u, 300000u}) {
      all.push_back({started, elements, {.deadline = 60s}});
      all.push_back({started, elements, {.deadline = 60s, .collectives = MpiCollectives::vendor}});
      all.push_back({started, elements, {.deadline = 60s, .check = Check::off}});
    }
  return all;
}
void make_call(MpiCommunicator& comm, std::vector<int>& values, bool started) {
  if (started)
    start_all_reduce(comm, values, sum).wait();
  else
    all_reduce(comm, values, sum);
}

/// Blocks rank 2, in the middle of a call, until rank 1 has destroyed its communicator.
struct WaitsOnRankTwo {
  static constexpr bool commutative = true;
  static inline std::atomic<bool> now = false;
  int operator()(int a, int b) const {
    if (now.exchange(false)) {
      int nothing = 0;
      MPI_Recv(&nothing, 1, MPI_INT, 1, 77, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      std::this_thread::sleep_for(100ms);  // nothing shows that the notification has reached rank 0
    }
    return a + b;
  }
};

}  // namespace

TEST_CASE("a rank that destroys its communicator early ends the others' next call before the deadline" *
          needs_ranks(2)) {
  for (const Way& way : ways())
    for (const int calls : {0, 2}) {
      CAPTURE(way.text());
      const auto begun = std::chrono::steady_clock::now();
      {
        MpiCommunicator comm(world(), way.options);
        std::vector<int> values(way.elements, 1);
        const auto make_calls = [&](int count) {
          for (int call = 0; call < count; ++call) make_call(comm, values, way.started);
        };
        if (comm.rank() == 1) {
          make_calls(calls);
        } else {
          const std::string expected = "rank 1 has destroyed its communicator";
          try {
            make_calls(calls + 1);
            FAIL_CHECK("nothing was thrown");
          } catch (const RankFailure& failure) {
            CHECK(failure.failed_rank() == 1);
            CHECK_MESSAGE(std::string(failure.what()).find(expected) != std::string::npos, failure.what());
          } catch (const RevokedError& error) {
            CHECK(comm.size() > 2);  // another rank has noticed it first, perhaps while this one is in an earlier call
            CHECK_MESSAGE(std::string(error.what()).find(expected) != std::string::npos, error.what());
          }
        }
      }
      CHECK(std::chrono::steady_clock::now() - begun < 50s);
      world().barrier();
    }
}

TEST_CASE("a rank may destroy its communicator after its last call, which the others complete" * needs_ranks(2)) {
  for (const Way& way : ways()) {
    CAPTURE(way.text());
    for (int round = 0; round < (way.elements < 100 ? 100 : 10); ++round) {
      MpiCommunicator comm(world(), way.options);
      std::vector<int> values(way.elements, 1);
      for (int call = 0; call < round % 3; ++call) make_call(comm, values, !way.started);  // those of the other queue
      values.assign(values.size(), 1);
      REQUIRE_NOTHROW(make_call(comm, values, way.started));
      REQUIRE(values.back() == comm.size());
    }
    world().barrier();
  }
}

TEST_CASE("a call continues while a rank that has made it destroys its communicator" * needs_ranks(3) *
          needs_threads()) {
  for (const bool started : {false, true}) {
    CAPTURE(started);
    std::vector<int> values(30000, 1);  // one piece, of which each rank reduces a slice
    {
      MpiCommunicator comm(world(), {.deadline = 60s});
      WaitsOnRankTwo::now = comm.rank() == 2;
      if (started)
        CHECK_NOTHROW(start_reduce(comm, values, values, WaitsOnRankTwo{}, 0).wait());
      else
        CHECK_NOTHROW(reduce(comm, values, values, WaitsOnRankTwo{}, 0));
      if (comm.rank() == 0) CHECK(values.back() == comm.size());
    }
    const int done = 1;
    if (world().rank() == 1) MPI_Send(&done, 1, MPI_INT, 2, 77, MPI_COMM_WORLD);
    world().barrier();
  }
}
