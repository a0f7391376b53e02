// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What distx does around functions of MPI, some of which this program replaces.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include <distx/distx.hpp>
#include <distx/mpi/detail/session.hpp>

#include "mpi/world.hpp"

using namespace distx;
using namespace std::chrono_literals;

namespace {

std::atomic<int> failing_reductions{0};  ///< the number of calls of MPI_Iallreduce that fail next
std::atomic<int> reductions_called{0};
std::atomic<bool> failing_tests{false};  ///< of all requests
std::thread::id splitter;                ///< the thread that has called MPI_Comm_split last

}  // namespace

extern "C" int MPI_Iallreduce(const void* send, void* receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                              MPI_Request* request) {
  ++reductions_called;
  if (failing_reductions > 0 && failing_reductions-- > 0) return MPI_ERR_INTERN;
  return PMPI_Iallreduce(send, receive, count, type, op, comm, request);
}
extern "C" int MPI_Testall(int count, MPI_Request* requests, int* all, MPI_Status* statuses) {
  return failing_tests ? MPI_ERR_INTERN : PMPI_Testall(count, requests, all, statuses);
}
extern "C" int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* made) {
  splitter = std::this_thread::get_id();
  return PMPI_Comm_split(comm, color, key, made);
}

TEST_CASE("an asynchronous call that MPI refuses throws where it starts, and revokes the communicator" *
          needs_ranks(2)) {
  MpiCommunicator comm(world(), {.check = Check::off, .collectives = MpiCollectives::vendor});
  static std::vector<int> values(1000, 1), more(1000, 1);  // MPI may keep them after an error
  if (comm.rank() == 0) {
    failing_reductions = 1;
    CHECK_THROWS_AS((void)start_all_reduce(comm, values, sum), BackendError);
    CHECK_THROWS_AS((void)start_all_reduce(comm, more, sum), RevokedError);
  } else {
    CHECK_THROWS_AS(start_all_reduce(comm, values, sum).wait(), RevokedError);
  }
  world().barrier();
}

TEST_CASE("after a compared call that MPI refuses, no later one takes its place" * needs_ranks(2)) {
  for (const bool in_order : {false, true}) {
    MpiCommunicator comm(world(), {.deadline = 20s, .collectives = MpiCollectives::vendor});
    static std::vector<int> values[2], more[2];
    auto& first_values = values[in_order] = std::vector<int>(3000, 1);
    auto& second_values = more[in_order] = std::vector<int>(3000, 2);
    world().barrier();
    const bool odd = comm.rank() == 1;
    const int reductions = reductions_called;
    if (odd) failing_reductions = 1;
    const auto began = std::chrono::steady_clock::now();
    Pending<> first, second;
    try {
      first = start_all_reduce(comm, first_values, sum);
      second = start_all_reduce(comm, second_values, sum);
      CHECK_THROWS_AS((in_order ? first : second).wait(), Error);
      CHECK_THROWS_AS((in_order ? second : first).wait(), Error);
    } catch (const Error&) {  // the start of the first one, or of the second
    }
    CHECK(std::chrono::steady_clock::now() - began < 10s);
    if (odd) CHECK(reductions_called - reductions <= 1);
    // They may have sums of some ranks, but no operand of the other call.
    CHECK(first_values[0] <= comm.size());
    CHECK(second_values[0] % 2 == 0);
    if (odd) failing_reductions = 0;
    world().barrier();
  }
}

TEST_CASE("a queue's requests of which MPI reports an error are not waited for") {
  failing_tests = true;
  MPI_Request request = MPI_REQUEST_NULL;
  detail::mpi::QueueTransport queue({MPI_COMM_SELF}, 0, 3, 32768);
  CHECK(queue.release({&request, 1}));
  failing_tests = false;
}

TEST_CASE("split without a deadline calls MPI on the caller's thread, otherwise on one that can be left" *
          needs_threads()) {
  for (const Timeout& deadline : {Timeout(no_timeout), Timeout(60s)}) {
    MpiCommunicator comm(world(), {.deadline = deadline});
    (void)comm.split(0, 0);
    CHECK((splitter == std::this_thread::get_id()) == deadline.unlimited());
  }
}

TEST_CASE("the mismatch of a message is thrown by its wait, not by a collective" * needs_ranks(2)) {
  MpiCommunicator comm(world(), {.check = Check::off, .collectives = MpiCollectives::vendor});
  static std::vector<int> short_one(1000), long_one(2000);
  Pending<> receiving, sending;
  if (comm.rank() == 0) receiving = start_receive(comm, short_one, 1, 1);
  if (comm.rank() == 1) sending = start_send(comm, long_one, 0, 1);
  std::vector<int> gathered(comm.rank() == 0 ? static_cast<std::size_t>(comm.size()) : 0), own{comm.rank()};
  for (int call = 0; call < 400; ++call) CHECK_NOTHROW(start_gather(comm, own, gathered, 0).wait());
  if (comm.rank() == 0) CHECK_THROWS_AS(receiving.wait(), MismatchError);
  if (comm.rank() == 1) CHECK_THROWS_AS(sending.wait(), Error);
  world().barrier();
}

TEST_CASE("the reason of a revocation is kept until the communicator is destroyed") {
  detail::mpi::Control& control = world().session()->control();
  const std::uint64_t identity = 12345;
  std::atomic<bool> revoked = true;
  control.join(identity, revoked);
  CHECK_FALSE(revoked);
  control.publish(identity, "enough", {});
  CHECK(revoked);
  CHECK(control.reason(identity) == "enough");
  control.leave(identity);
  CHECK_FALSE(control.reason(identity));
  control.publish(identity, "early", {});
  revoked = false;
  control.join(identity, revoked);
  CHECK(revoked);
  control.leave(identity);
  world().barrier();
}

TEST_CASE("a connector's call that all ranks have joined ends its failures, also if it is a mismatch" *
          needs_ranks(2)) {
  detail::mpi::Control& control = world().session()->control();
  control.note_failure();
  CHECK(control.has_failed());
  std::vector<std::byte> odd(world().rank() == 1 ? 5 : 4);
  CHECK_THROWS_AS(world().broadcast(odd, 0), MismatchError);
  CHECK_FALSE(control.has_failed());
  world().barrier();
}
