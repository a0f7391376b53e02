// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Connectors and communicators of the surviving ranks. endings.py kills ranks; here all stay.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <string>

#include <distx/distx.hpp>

#include "connect/words.hpp"
#include "mpi/world.hpp"

using namespace distx;
using test::contains;
using test::error_of;
using namespace std::chrono_literals;

namespace {

static_assert(requires(MpiConnector& connector, Timeout deadline) {
  { connector.shrink(deadline) } -> std::same_as<MpiConnector>;
});

/// Checks that a connector has these ranks of the world.
void check_ranks(MpiConnector& connector, const std::vector<int>& expected) {
  CHECK(all_gather_values(connector, world().rank()) == expected);
  CHECK(connector.size() == static_cast<int>(expected.size()));
  CHECK(connector.local_size() == connector.size());
  CHECK(connector.local_rank() == connector.rank());
  CHECK(expected[static_cast<std::size_t>(connector.rank())] == world().rank());
  CHECK(broadcast_value(connector, world().rank(), connector.size() - 1) == expected.back());
  std::vector<double> many(100000, connector.rank() == 0 ? 1.5 : 0.0);
  connector.broadcast(std::as_writable_bytes(std::span(many)), 0);
  CHECK(std::ranges::count(many, 1.5) == 100000);
  connector.barrier();
  CHECK(connector.native_handle() == MPI_COMM_NULL);
}

std::vector<int> all_ranks() {
  std::vector<int> ranks(static_cast<std::size_t>(world().size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

TEST_CASE("shrink returns all ranks if none is lost, again and again" * needs_threads()) {
  MpiConnector host(MPI_COMM_WORLD);
  auto left = host.shrink(60s);
  check_ranks(left, all_ranks());
  auto same = left.shrink(60s);
  check_ranks(same, all_ranks());
  CHECK(contains(error_of<InvalidState>([&] { (void)left.shrink(60s); }), "this connector has been replaced"));
  world().barrier();
}

TEST_CASE("a rank that does not enter shrink before the deadline is excluded, and throws" * needs_threads() *
          needs_ranks(2)) {
  MpiConnector host(MPI_COMM_WORLD);
  world().barrier();
  const int late = world().size() / 2;
  if (world().rank() == late) {
    world().barrier();
    CHECK(contains(error_of<ConnectError>([&] { (void)host.shrink(5s); }), "continue without this one"));
  } else {
    auto left = host.shrink(5s);
    auto expected = all_ranks();
    std::erase(expected, late);
    check_ranks(left, expected);
    MpiCommunicator comm(left);
    int one = 1;
    all_reduce(comm, one, sum);
    CHECK(one == world().size() - 1);
    world().barrier();
  }
  world().barrier();
}

TEST_CASE("calls of the connector that shrink returned are compared, and end at the shorter deadline" *
          needs_threads() * needs_ranks(2)) {
  MpiConnector host(MPI_COMM_WORLD, {.deadline = 60s});
  auto left = host.shrink(60s).shrink(20s);
  std::vector<std::byte> bytes(left.rank() == 1 ? 8 : 4);
  CHECK_THROWS_AS(left.broadcast(bytes, 0), MismatchError);
  left.barrier();  // all ranks have thrown
  auto short_lived = left.shrink(1s);
  if (short_lived.rank() != 0) {
    const auto said = error_of<TimeoutError>([&] { short_lived.barrier(); });
    CHECK(contains(said, "timed out after 1 s: rank"));
    CHECK_THROWS_AS(short_lived.barrier(), RevokedError);
  }
  world().barrier();
}

TEST_CASE("messages of communicators that use one MPI communicator never match" * needs_threads() * needs_ranks(2)) {
  MpiConnector host(MPI_COMM_WORLD);
  auto left = host.shrink(60s);
  MpiCommunicator first(left), second(left);
  auto group = second.split(0, -second.rank());  // in the opposite order
  const int next = (world().rank() + 1) % world().size();
  const int before = (world().rank() + world().size() - 1) % world().size();
  const auto in_group = [&](int rank) { return group.size() - 1 - rank; };
  std::vector<int> from_first(3), from_second(3), from_group(3);
  auto receives_group = start_receive(group, from_group, in_group(before), 7);
  auto receives_second = start_receive(second, from_second, before, 7);
  auto receives_first = start_receive(first, from_first, before, 7);
  const std::vector<int> ones(3, 1), twos(3, 2), threes(3, 3);
  auto sends_first = start_send(first, ones, next, 7);
  auto sends_second = start_send(second, twos, next, 7);
  auto sends_group = start_send(group, threes, in_group(next), 7);
  int sum_of_first = 1, sum_of_group = 10;
  all_reduce(first, sum_of_first, sum);
  all_reduce(group, sum_of_group, sum);
  sends_first.wait();
  sends_second.wait();
  sends_group.wait();
  receives_first.wait();
  receives_second.wait();
  receives_group.wait();
  CHECK(from_first == ones);
  CHECK(from_second == twos);
  CHECK(from_group == threes);
  CHECK(sum_of_first == world().size());
  CHECK(sum_of_group == 10 * world().size());
  CHECK(group.rank() == in_group(world().rank()));
  CHECK(group.native_handle() == MPI_COMM_NULL);
  world().barrier();
}

TEST_CASE("messages in flight on a revoked communicator do not reach the one that follows it" * needs_threads() *
          needs_ranks(2)) {
  MpiConnector host(MPI_COMM_WORLD);
  auto left = host.shrink(60s);
  const int last = world().size() - 1;
  for (int round = 0; round < 3; ++round) {
    CAPTURE(round);
    MpiCommunicator comm(left);
    std::vector<int> value(3, 99);
    // All but the last rank send their part of a call that the last one never receives.
    if (comm.rank() != last)
      CHECK_THROWS_AS(all_reduce(comm, value, sum), RevokedError);
    else
      comm.revoke("enough");
    left = left.shrink(60s);
    MpiCommunicator next(left);
    std::vector<int> ones(3, 1);
    all_reduce(next, ones, sum);
    CHECK(ones == std::vector<int>(3, world().size()));
  }
}

TEST_CASE("without MPI's collectives, options that need them are refused or have no effect" * needs_threads()) {
  MpiConnector host(MPI_COMM_WORLD);
  auto left = host.shrink(60s);
  const auto said =
      error_of<InvalidArgument>([&] { MpiCommunicator comm(left, {.collectives = MpiCollectives::vendor}); });
  CHECK(contains(said, "MpiCollectives::vendor: MPI's collectives wait for all ranks"));
  for (const Check check : {Check::off, Check::first_use}) {
    MpiCommunicator comm(left, {.deadline = no_timeout, .check = check});
    std::vector<float> x(100000, 1.0f);
    for (int round = 0; round < 2; ++round) {
      all_reduce(comm, x, max);
      auto pending = start_all_reduce(comm, x, max);
      pending.wait();
    }
    CHECK(x == std::vector<float>(100000, 1.0f));
    world().barrier();  // the invalid send revokes the communicator
    if (comm.size() > 1) {
      const auto tag = error_of<InvalidArgument>([&] { send(comm, x, 0, 40000); });
      CHECK(contains(tag, "invalid tag 40000: this MPI has tags up to 8191 for surviving ranks"));
    }
  }
  world().barrier();
}

TEST_CASE("failure notifications of one connector do not reach the one that follows it" * needs_threads()) {
  MpiConnector host(MPI_COMM_WORLD);
  host.failure_channel()->publish(7, "before");
  auto left = host.shrink(60s);
  CHECK_FALSE(left.failure_channel()->poll(7));
  world().barrier();
  left.failure_channel()->publish(7, "after");
  CHECK(left.failure_channel()->poll(7) == "after");
  world().barrier();
}
