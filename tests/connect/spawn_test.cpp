// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/threads.hpp"

#include <doctest/doctest.h>

#include <set>
#include <string>

namespace {

using distx::ThreadConnector;

TEST_CASE("every rank runs once, rank 0 on the calling thread") {
  std::mutex mutex;
  std::multiset<int> ranks;
  std::set<std::thread::id> threads;
  std::thread::id of_rank_0;
  distx::spawn(5, [&](ThreadConnector& connector) {
    const std::lock_guard lock(mutex);
    ranks.insert(connector.rank());
    threads.insert(std::this_thread::get_id());
    if (connector.rank() == 0) of_rank_0 = std::this_thread::get_id();
  });
  CHECK(ranks == std::multiset<int>{0, 1, 2, 3, 4});
  CHECK(threads.size() == 5);
  CHECK(of_rank_0 == std::this_thread::get_id());
}

TEST_CASE("the number and the deadline of threads can be named") {
  int ranks = 0;
  distx::spawn(distx::Threads{.count = 1}, [&](ThreadConnector& connector) { ranks += connector.size(); });
  distx::spawn({.count = 1, .deadline = std::chrono::seconds(1)}, [&](ThreadConnector&) { ++ranks; });
  CHECK(ranks == 2);
}

TEST_CASE("spawn without ranks throws InvalidArgument") {
  CHECK_THROWS_WITH_AS(distx::spawn(0, [](ThreadConnector&) {}), "distx: invalid threads(0): must be at least 1",
                       distx::InvalidArgument);
}

TEST_CASE("a rank's exception ends the waits of the others, and spawn throws it with the rank") {
  for (const int failing : {0, 1, 3}) {
    std::atomic<int> revoked{0};
    std::string words;
    int failed = -1;
    std::string cause;
    try {
      distx::spawn(4, [&](ThreadConnector& connector) {
        connector.barrier();  // all have started
        if (connector.rank() == failing) throw std::out_of_range("the fifth wheel");
        try {
          connector.barrier();
        } catch (const distx::RevokedError& error) {
          const std::string told = error.what();
          if (told.find("rank " + std::to_string(failing) + " of 4 ended with an exception: the fifth wheel") !=
              std::string::npos)
            ++revoked;
          throw;
        }
      });
    } catch (const distx::RankFailure& failure) {
      words = failure.what();
      failed = failure.failed_rank();
      try {
        std::rethrow_exception(failure.cause());
      } catch (const std::out_of_range& original) {
        cause = original.what();
      }
    }
    CHECK(revoked == 3);
    CHECK(failed == failing);
    CHECK(words == "distx: rank " + std::to_string(failing) + " of 4 ended with an exception: the fifth wheel");
    CHECK(cause == "the fifth wheel");
  }
}

TEST_CASE("a rank may throw a type that is not derived from std::exception") {
  CHECK_THROWS_WITH_AS(
      distx::spawn(2,
                   [](ThreadConnector& c) {
                     if (c.rank() == 1) throw 7;
                   }),
      "distx: rank 1 of 2 ended with an exception: unknown exception (not derived from std::exception)",
      distx::RankFailure);
}

TEST_CASE("spawn reports the first exception, not its consequences on other ranks") {
  // Rank 2 throws; ranks 0 and 1 fail because of it, in a collective that includes it.
  int failed = -1;
  try {
    distx::spawn(3, [](ThreadConnector& connector) {
      if (connector.rank() == 2) throw std::runtime_error("first");
      connector.barrier();
    });
  } catch (const distx::RankFailure& failure) {
    failed = failure.failed_rank();
  }
  CHECK(failed == 2);
}

TEST_CASE("a rank that does not enter a call makes it time out at the deadline") {
  std::atomic<bool> timed_out{false};
  std::string words;
  try {
    distx::spawn(distx::threads(2, std::chrono::milliseconds(20)), [&](ThreadConnector& connector) {
      if (connector.rank() == 1) {
        timed_out.wait(false);
        return;
      }
      try {
        connector.barrier();
      } catch (const distx::TimeoutError& error) {
        words = error.what();
      }
      timed_out = true;
      timed_out.notify_all();
    });
  } catch (const distx::RankFailure&) {
  }
  CHECK(words ==
        "distx: barrier on rank 0 of 2 (threads): timed out after 0.02 s: rank 1 of 2 did not enter this call");
}

TEST_CASE("a rank that has returned ends the calls of the others at once, and what it has entered before is complete") {
  std::atomic<int> failed{0};
  distx::spawn(distx::threads(3, std::chrono::seconds(5)), [&](ThreadConnector& connector) {
    connector.barrier();
    if (connector.rank() == 2) return;
    try {
      connector.barrier();
    } catch (const distx::RankFailure& failure) {
      if (failure.failed_rank() == 2 && failure.message() == "rank 2 of 3 has returned and will not enter this call")
        ++failed;
    }
  });
  CHECK(failed == 2);
}

TEST_CASE("the deadline of a call covers all ranks together: one that enters does not extend it") {
  const auto begin = std::chrono::steady_clock::now();
  std::atomic<int> timeouts{0};
  try {
    distx::spawn(distx::threads(8, std::chrono::milliseconds(100)), [&](ThreadConnector& connector) {
      std::this_thread::sleep_until(begin + connector.rank() * std::chrono::milliseconds(50));
      try {
        connector.barrier();
      } catch (const distx::TimeoutError&) {
        ++timeouts;
        throw;
      }
    });
  } catch (const distx::RankFailure&) {
  }
  CHECK(timeouts > 0);
}

TEST_CASE("spawn can be nested") {
  std::atomic<int> total{0};
  distx::spawn(2, [&](ThreadConnector&) {
    distx::spawn(3, [&](ThreadConnector& inner) {
      inner.barrier();
      total += inner.rank();
    });
  });
  CHECK(total == 6);
}

}  // namespace
