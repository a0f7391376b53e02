// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// An emulated link: calls take at least its time, it uses no processor time, and computation overlaps with it.
#include <doctest/doctest.h>

#include <chrono>
#include <ctime>
#include <thread>

#include "distx/comm/decorators/throttled.hpp"
#include "distx/distx.hpp"

namespace {

using namespace std::chrono_literals;
using clock_type = std::chrono::steady_clock;

/// One of two ranks whose calls transfer nothing and take no time, so all time is that of the link.
class Idle {
 public:
  using space = distx::Host;
  struct Pending {
    Pending() = default;
    Pending(Pending&&) = default;
    Pending& operator=(Pending&&) = default;
    void wait() {}
    void wait(distx::HostStream) {}
    bool test() { return true; }
  };
  [[nodiscard]] int rank() const { return 0; }
  [[nodiscard]] int size() const { return 2; }
  [[nodiscard]] std::string_view backend() const { return "idle"; }
  template <distx::calls::Collective Call>
  void execute(const Call&) {}
  template <distx::calls::Collective Call>
  [[nodiscard]] Pending start(const Call&, distx::HostStream) {
    return {};
  }
  [[nodiscard]] Idle split(int, int) { return {}; }
  [[nodiscard]] Idle share() const { return {}; }
  template <class T>
  [[nodiscard]] distx::CommunicatorMemory<T> allocate(std::size_t size) {
    return distx::CommunicatorMemory<T>::plain(size);
  }
  void revoke(const std::string&) {}
  Idle() = default;
  Idle(Idle&&) = default;
  Idle& operator=(Idle&&) = default;
};

/// A broadcast by rank 0, which sends all of this: 100 ms at 1 MB/s.
const std::size_t elements = 100'000;
using Wire = distx::Throttled<Idle>;
Wire wire() { return {Idle(), {.latency = 20ms, .bandwidth = 1e6}}; }
constexpr auto once = 120ms;

template <class F>
clock_type::duration duration_of(F&& f) {
  const auto begin = clock_type::now();
  f();
  return clock_type::now() - begin;
}

TEST_CASE("a blocking call sleeps for the time of its link") {
  auto comm = wire();
  std::vector<std::int8_t> values(elements);
  const std::clock_t processor = std::clock();
  CHECK(duration_of([&] { distx::broadcast(comm, values, 0); }) >= once);
  CHECK(static_cast<double>(std::clock() - processor) / CLOCKS_PER_SEC < 0.01);
  CHECK(duration_of([&] { distx::barrier(comm); }) >= 20ms);
}

TEST_CASE("the two directions of a link are independent") {
  auto comm = wire();
  std::vector<std::int8_t> values(elements);
  auto pending = distx::start_all_reduce(comm, values, distx::sum);  // two ranks: n bytes are sent and n received
  std::this_thread::sleep_until(clock_type::now() + once);
  CHECK(pending.test());
}

TEST_CASE("an asynchronous call completes at the end of the link's time, whether the rank computes or not") {
  auto comm = wire();
  std::vector<std::int8_t> values(elements);
  const auto begin = clock_type::now();
  auto pending = distx::start_broadcast(comm, values, 0);
  const auto started = clock_type::now();
  if (pending.test()) CHECK(clock_type::now() - begin >= once);
  // The link's time is spent on something else, so the wait returns at once.
  std::this_thread::sleep_until(started + once);
  CHECK(pending.test());
  pending.wait();
  CHECK(clock_type::now() - begin >= once);

  CHECK(duration_of([&] { distx::start_broadcast(comm, values, 0).wait(); }) >= once);
  CHECK(duration_of([&] { distx::start_broadcast(comm, values, 0).wait(distx::HostStream{}); }) >= once);
  CHECK(duration_of([&] { auto abandoned = distx::start_broadcast(comm, values, 0); }) >= once);
}

TEST_CASE("a moved Pending keeps its time; a Pending that is assigned to waits first") {
  auto comm = wire();
  std::vector<std::int8_t> values(elements);
  auto begin = clock_type::now();
  auto first = distx::start_broadcast(comm, values, 0);
  auto second = std::move(first);
  CHECK(first.test());
  first.wait();
  second.wait();
  CHECK(clock_type::now() - begin >= once);

  begin = clock_type::now();
  second = distx::start_broadcast(comm, values, 0);
  second = distx::start_barrier(comm);
  CHECK(clock_type::now() - begin >= once);
  first = std::move(second);
  first.wait();
  CHECK(clock_type::now() - begin >= once + 20ms);
}

TEST_CASE("several calls share one link in order") {
  auto comm = wire();
  auto handle = comm.share();
  auto group = comm.split(0, 0);
  std::vector<std::int8_t> values(elements);
  const auto begin = clock_type::now();
  auto first = distx::start_broadcast(comm, values, 0);
  auto second = distx::start_broadcast(handle, values, 0);
  auto third = distx::start_broadcast(group, values, 0);
  const auto started = clock_type::now();
  if (second.test()) CHECK(clock_type::now() - begin >= 2 * once);
  std::this_thread::sleep_until(started + once);
  CHECK(first.test());
  distx::barrier(comm);
  CHECK(clock_type::now() - begin >= 3 * once + 20ms);
  CHECK(second.test());
  CHECK(third.test());
}

TEST_CASE("a link does not make up for idle time") {
  auto comm = wire();
  std::vector<std::int8_t> values(elements);
  distx::broadcast(comm, values, 0);
  std::this_thread::sleep_for(2 * once);
  CHECK(duration_of([&] { distx::broadcast(comm, values, 0); }) >= once);
}

TEST_CASE("a failed call does not wait, and neither does unwinding") {
  // A transfer of one hour: waiting for it would exceed the time limit of the test.
  distx::Throttled comm(Idle(), {.latency = 1h});
  CHECK_THROWS_WITH(
      [&] {
        auto pending = distx::start_barrier(comm);
        throw std::runtime_error("out of luck");
      }(),
      "out of luck");
  distx::SelfConnector self;
  distx::Throttled alone(distx::SerialCommunicator(self), {.latency = 1h});
  float value = 1;
  distx::all_reduce(alone, value, distx::sum);  // a communicator of one rank has no link
  CHECK_THROWS_AS(distx::broadcast(alone, value, 1), distx::InvalidArgument);
}

TEST_CASE("Throttled rejects a negative latency and a non-positive bandwidth") {
  const auto make = [](const distx::WireSpeed& speed) { return distx::Throttled(Idle(), speed); };
  CHECK_THROWS_AS(make({.latency = -1ns}), distx::InvalidArgument);
  CHECK_THROWS_AS(make({.bandwidth = 0}), distx::InvalidArgument);
  CHECK_THROWS_AS(make({.bandwidth = -5}), distx::InvalidArgument);
  CHECK_THROWS_AS(make({.bandwidth = std::numeric_limits<double>::quiet_NaN()}), distx::InvalidArgument);
  CHECK_NOTHROW(make({}));
}

TEST_CASE("thread ranks over a link compute the right sums, not earlier") {
  for (const int ranks : {2, 3}) {
    distx::spawn(ranks, [&](distx::ThreadConnector& connector) {
      distx::Throttled comm(distx::ThreadCommunicator(connector), {.latency = 30ms});
      std::vector<int> values(10, comm.rank() + 1), more = values;
      const auto begin = clock_type::now();
      auto pending = distx::start_all_reduce(comm, values, distx::sum);
      distx::all_reduce(comm, more, distx::sum);
      pending.wait();
      const auto took = clock_type::now() - begin;
      const std::vector<int> expected(10, ranks * (ranks + 1) / 2);
      if (values != expected || more != expected) throw std::runtime_error("a sum is wrong");
      if (took < 60ms) throw std::runtime_error("two calls took less than two latencies");
    });
  }
}

}  // namespace
