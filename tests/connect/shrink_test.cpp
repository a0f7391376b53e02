// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <signal.h>

#include <atomic>
#include <optional>

#include "connect/generations.hpp"
#include "connect/in_folder.hpp"
#include "connect/over_tcp.hpp"
#include "distx/threads.hpp"
#include "words.hpp"

// Connectors of the surviving ranks.
namespace {

using distx::FileConnector;
using distx::TcpConnector;
using distx::ThreadConnector;
using std::chrono::seconds;
using test::check_ranks;
using test::contains;
using test::forked;

TEST_CASE("surviving threads keep their order in a smaller connector, and again after the next end") {
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
    auto two = connector.shrink(seconds(1));
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

/// Four ranks, of which rank 2 is killed and, in the smaller connector, rank 3.
template <class C>
int kill_two(int rank, C connector) {
  connector.barrier();
  if (rank == 2) ::raise(SIGKILL);
  try {
    connector.barrier();
    return 2;
  } catch (const distx::RankFailure&) {
  }
  auto three = connector.shrink(seconds(20));
  if (distx::all_gather_values(three, rank) != std::vector{0, 1, 3} || three.local_size() != 3) return 3;
  if (three.failure_channel()->poll(7)) return 4;  // the earlier failure is not one of this group
  three.barrier();
  if (rank == 3) ::raise(SIGKILL);
  try {
    three.barrier();
    return 5;
  } catch (const distx::RankFailure&) {
  }
  auto two = three.shrink(seconds(20));
  return distx::all_gather_values(two, rank) == std::vector{0, 1} ? 0 : 6;
}

TEST_CASE("processes that survive a kill keep their order in a smaller connector, and leave no files") {
  const test::NewFolder folder;
  CHECK(forked(4, [&](int rank) {
          return kill_two(rank, FileConnector(folder.path(), rank, 4, {.deadline = seconds(20)}));
        }) == std::vector{0, 0, SIGKILL, SIGKILL});
  CHECK(folder.empty());
}

TEST_CASE("the last process removes also what a killed one has left of an earlier connector") {
  const test::NewFolder folder;
  const auto body = [&](int rank) {
    std::optional<FileConnector> first(std::in_place, folder.path(), rank, 3,
                                       distx::FileConnectorOptions{.deadline = seconds(20)});
    auto second = first->shrink(seconds(20));
    if (rank != 2) first.reset();
    second.barrier();
    if (rank == 2) ::raise(SIGKILL);
    try {
      second.barrier();
      return 2;
    } catch (const distx::RankFailure&) {
    }
    return second.shrink(seconds(20)).size() == 2 ? 0 : 3;
  };
  CHECK(forked(3, body) == std::vector{0, 0, SIGKILL});
  CHECK(folder.empty());
}

TEST_CASE("processes that survive a kill keep their order in a smaller connector over TCP") {
  const int port = test::free_port();
  CHECK(forked(4, [&](int rank) {
          return kill_two(rank, TcpConnector("127.0.0.1", port, rank, 4, {.deadline = seconds(20)}));
        }) == std::vector{0, 0, SIGKILL, SIGKILL});
}

TEST_CASE("without rank 0, which serves the others over TCP, shrink throws ConnectError on every rank") {
  const int port = test::free_port();
  CHECK(forked(3, [&](int rank) {
          TcpConnector connector("127.0.0.1", port, rank, 3, {.deadline = seconds(20)});
          connector.barrier();
          if (rank == 0) ::raise(SIGKILL);
          const auto message = test::error_of<distx::ConnectError>([&] { (void)connector.shrink(seconds(20)); });
          return contains(message, "rank 0 serves the other ranks, which cannot continue without it") &&
                         contains(message, "restart all ranks from the last checkpoint")
                     ? 0
                     : 2;
        }) == std::vector{SIGKILL, 0, 0});
}

TEST_CASE("a rank 0 that does not enter shrink over TCP makes it throw on every rank") {
  std::atomic<int> thrown{0};
  (void)test::each_over_tcp(3, [&](TcpConnector& connector) {
    if (connector.rank() == 0)
      while (thrown < 2) std::this_thread::yield();
    CHECK_THROWS_AS((void)connector.shrink(std::chrono::milliseconds(50)), distx::ConnectError);
    ++thrown;
  });
  CHECK(thrown == 3);
}

TEST_CASE("over TCP the others continue without a rank that does not enter shrink, which then throws") {
  std::atomic<int> left{0};
  const auto messages = test::each_over_tcp(4, [&](TcpConnector& connector) {
    const int rank = connector.rank();
    if (rank == 1) {
      while (left < 3) std::this_thread::yield();
      (void)connector.shrink();
      return;
    }
    auto three = connector.shrink(seconds(2));
    CHECK_THROWS_AS((void)connector.shrink(), distx::InvalidState);
    CHECK(!three.failure_channel()->poll(3));
    ++left;
    check_ranks(three, rank, {0, 2, 3});
    if (rank == 2) throw std::runtime_error("second");
    CHECK_THROWS_AS(three.barrier(), distx::RevokedError);
    auto two = three.shrink(seconds(20));
    check_ranks(two, rank, {0, 3});
    two.failure_channel()->publish(5, "reason");
    two.barrier();
    CHECK(two.failure_channel()->poll(5) == "reason");
  });
  CHECK(contains(messages[1], "the other ranks continue without this one"));
  CHECK((messages[0].empty() && messages[3].empty()));
  CHECK(messages[2] == "second");
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
    auto two = connector.shrink(seconds(2));
    ++left;
    check_ranks(two, connector.rank(), {0, 2});
  });
  CHECK(contains(messages[1], "the other ranks continue without this one"));
  CHECK((messages[0].empty() && messages[2].empty()));
  CHECK(folder.empty());
}

}  // namespace
