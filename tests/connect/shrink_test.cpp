// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>

#include "connect/in_folder.hpp"
#include "distx/connect/spawn.hpp"
#include "words.hpp"

// Connectors of the ranks that are left.
namespace {

using distx::FileConnector;
using distx::ThreadConnector;
using std::chrono::seconds;
using test::contains;

/// Checks that a connector has these ranks of an earlier one, of which this rank was `rank`.
template <class C>
void check_ranks(C& connector, int rank, const std::vector<int>& expected) {
  CHECK(distx::all_gather_values(connector, rank) == expected);
  CHECK(connector.size() == static_cast<int>(expected.size()));
  CHECK(expected[static_cast<std::size_t>(connector.rank())] == rank);
  CHECK(distx::broadcast_value(connector, rank, connector.size() - 1) == expected.back());
  connector.barrier();
}

TEST_CASE("threads that are left keep their order in a smaller connector, and again after the next end") {
  for (const bool throws : {true, false}) {
    std::atomic<int> ended{0};
    const auto run = [&] {
      distx::spawn(distx::threads(5, seconds(20)), [&](ThreadConnector& connector) {
        const int rank = connector.rank();
        const auto end = [&] {
          if (throws) throw std::runtime_error("lost");
        };
        if (rank == 2) return end();
        auto four = connector.shrink(seconds(20));
        check_ranks(four, rank, {0, 1, 3, 4});
        if (rank == 0) return end();
        CHECK_THROWS_AS((void)connector.shrink(), distx::InvalidState);
        auto three = four.shrink(seconds(20));
        check_ranks(three, rank, {1, 3, 4});
        ++ended;
      });
    };
    if (throws)
      CHECK_THROWS_AS(run(), distx::RankFailure);
    else
      run();
    CHECK(ended == 3);
  }
}

TEST_CASE("a rank that throws ends the waits in a smaller connector, too") {
  std::atomic<int> revoked{0};
  CHECK_THROWS_AS(distx::spawn(distx::threads(4, seconds(20)),
                               [&](ThreadConnector& connector) {
                                 if (connector.rank() == 3) throw std::runtime_error("first");
                                 auto three = connector.shrink(seconds(20));
                                 if (connector.rank() == 0) throw std::runtime_error("second");
                                 try {
                                   three.barrier();
                                 } catch (const distx::RevokedError&) {
                                   ++revoked;
                                 }
                                 auto two = three.shrink(seconds(20));
                                 check_ranks(two, connector.rank(), {1, 2});
                               }),
                  distx::RankFailure);
  CHECK(revoked == 2);
}

TEST_CASE("the others continue at the deadline without a rank that does not enter shrink, which then throws") {
  std::atomic<int> left{0};
  distx::spawn(distx::threads(3, seconds(20)), [&](ThreadConnector& connector) {
    if (connector.rank() == 1) {
      while (left < 2) std::this_thread::yield();
      CHECK_THROWS_AS((void)connector.shrink(), distx::ConnectError);
      return;
    }
    auto two = connector.shrink(std::chrono::milliseconds(50));
    ++left;
    check_ranks(two, connector.rank(), {0, 2});
  });
}

TEST_CASE("a connector of any type shrinks if the one inside does") {
  distx::AnyConnector self{distx::SelfConnector()};
  CHECK(self.shrink().size() == 1);
  distx::spawn(2, [](ThreadConnector& connector) {
    distx::AnyConnector any(connector);
    auto both = any.shrink();
    check_ranks(both, connector.rank(), {0, 1});
  });
}

TEST_CASE("processes that are left after a kill keep their order in a smaller connector, and leave no files") {
  const test::NewFolder folder;
  constexpr int ranks = 4, victim = 2;
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = ::fork();
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    int status = 1;
    try {
      FileConnector connector(folder.path(), rank, ranks, {.deadline = seconds(20)});
      connector.barrier();
      if (rank == victim) ::raise(SIGKILL);
      try {
        connector.barrier();
      } catch (const distx::RankFailure&) {
        status = 2;
      }
      auto three = connector.shrink(seconds(20));
      const auto all = distx::all_gather_values(three, rank);
      if (status == 2 && all == std::vector{0, 1, 3} && three.local_size() == 3) status = 3;
      if (rank == 3) ::raise(SIGKILL);
      try {
        three.barrier();
      } catch (const distx::RankFailure&) {
        auto two = three.shrink(seconds(20));
        if (status == 3 && distx::all_gather_values(two, rank) == std::vector{0, 1}) status = 0;
      }
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    }
    ::_exit(status);
  }
  for (int rank = 0; rank < ranks; ++rank) {
    INFO("rank ", rank);
    int status = 0;
    ::waitpid(children[static_cast<std::size_t>(rank)], &status, 0);
    CHECK(status == (rank >= victim ? SIGKILL : 0));
  }
  CHECK(folder.empty());
}

TEST_CASE("a process that enters shrink after the others have continued throws ConnectError") {
  const test::NewFolder folder;
  std::atomic<int> left{0};
  const auto messages = test::each_in(folder.path(), 3, [&](FileConnector& connector) {
    if (connector.rank() == 1) {
      while (left < 2) std::this_thread::yield();
      (void)connector.shrink();
      return;
    }
    auto two = connector.shrink(std::chrono::milliseconds(200));
    ++left;
    check_ranks(two, connector.rank(), {0, 2});
  });
  CHECK(contains(messages[1], "the other ranks continue without this one"));
  CHECK((messages[0].empty() && messages[2].empty()));
  CHECK(folder.empty());
}

}  // namespace
