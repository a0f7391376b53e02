// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include <distx/distx.hpp>

#include "comm/notified_of_mismatch.hpp"
#include "connect/wait_for_failure.hpp"
#include "mpi/world.hpp"

using namespace distx;
using test::wait_for;

namespace {

static_assert(HasFailureChannel<MpiConnector>);

bool can_tell() { return world().thread_level() == MpiConnectorOptions::ThreadLevel::multiple; }

}  // namespace

TEST_CASE("failure_channel is null only without MPI_THREAD_MULTIPLE") {
  CHECK((world().failure_channel() != nullptr) == can_tell());
}

TEST_CASE("a notification published by a separate thread reaches every rank during other calls" * needs_threads()) {
  for (int teller = 0; teller < world().size(); ++teller) {
    const std::string words = "rank " + std::to_string(teller) + " says so";
    const auto identity = static_cast<std::uint64_t>(100 + teller);
    const auto notices = world().failure_channel();
    std::string heard;
    std::jthread watcher([&] { heard = wait_for(*notices, identity); });
    if (world().rank() == teller) notices->publish(identity, words);
    for (int other = 0; other < 10; ++other) world().barrier();
    watcher.join();
    CHECK(heard == words);
    CHECK(!notices->poll(99));
    world().barrier();
    notices->publish(identity, "too late");
    world().barrier();
    CHECK(notices->poll(identity) == words);
  }
}

TEST_CASE("a notification does not affect communicators, regardless of its identity" * needs_threads()) {
  MpiConnector connector(MPI_COMM_WORLD);
  MpiCommunicator comm(connector);
  const auto notices = connector.failure_channel();
  // The identities of this session's present and future communicators.
  for (std::uint64_t identity = 0; identity < 20; ++identity)
    if (connector.rank() == 0) notices->publish(identity, "not of a communicator");
  for (std::uint64_t identity = 0; identity < 20; ++identity)
    CHECK(wait_for(*notices, identity) == "not of a communicator");
  std::vector<int> ones(3, 1);
  all_reduce(comm, ones, sum);
  CHECK(ones == std::vector<int>(3, comm.size()));
  MpiCommunicator later(connector);
  all_reduce(later, ones, sum);
  connector.barrier();
  // A revocation is not a notification.
  if (connector.rank() == 0) later.revoke("for the test");
  if (connector.rank() != 0) CHECK_THROWS_AS(all_reduce(later, ones, sum), RevokedError);
  for (std::uint64_t identity = 20; identity < 40; ++identity) CHECK(!notices->poll(identity));
}

TEST_CASE("notifications outlive their connector, and long ones are truncated" * needs_threads()) {
  std::shared_ptr<FailureChannel> notices = MpiConnector(MPI_COMM_WORLD).failure_channel();
  const std::string long_words(5000, 'x');
  if (world().rank() == 0) notices->publish(1, long_words);
  const auto heard = wait_for(*notices, 1);
  CHECK(heard.size() >= 1000);
  CHECK(long_words.starts_with(heard));
  world().barrier();
}

TEST_CASE("a notification reaches every thread rank of every process" * needs_threads()) {
  spawn(threads(2) * world(), [](auto& ranks) {
    const auto notices = ranks.failure_channel();
    const int last = ranks.size() - 1;
    if (ranks.rank() == last) notices->publish(77, "from the last");
    if (wait_for(*notices, 77) != "from the last") throw std::runtime_error("rank heard nothing");
  });
  world().barrier();
}

TEST_CASE("a rank that is notified of a mismatch throws MismatchError once, in a call that waits or in the next") {
  for (int round = 0; round < 20; ++round) {
    MpiCommunicator comm(world());
    CHECK_NOTHROW(test::check_notified_of_mismatch(comm));
    world().barrier();
  }
}

TEST_CASE("a rank that is notified of another one's failed allocation throws RevokedError with the code ENOMEM") {
  MpiCommunicator comm(world());
  CHECK_NOTHROW(test::check_notified_of_failed_allocation(comm));
  world().barrier();
}

TEST_CASE("a rank that is notified of another one's own error throws NonFiniteError, or what is not a rank loss") {
  for (auto* const check :
       {test::check_notified_of_not_finite<MpiCommunicator>, test::check_notified_of_own_error<MpiCommunicator>}) {
    MpiCommunicator comm(world());
    CHECK_NOTHROW(check(comm));
    world().barrier();
  }
}
