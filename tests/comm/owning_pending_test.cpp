// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include <chrono>
#include <vector>

#include "distx/comm.hpp"
#include "distx/comm/decorators/throttled.hpp"
#include "distx/threads.hpp"

namespace {

/// Starts calls on buffers that are moved in, and checks what `wait` returns.
template <class C>
void check_moved_buffers(C& comm) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  const float sum = static_cast<float>(comm.size());

  std::vector<float> ones(1000, 1.0f);
  const float* const memory = ones.data();
  auto reduced = distx::start_all_reduce(comm, std::move(ones), distx::sum);
  ones.assign(10, -1.0f);  // the caller's variable is free again
  const auto result = reduced.wait();
  CHECK(result.data() == memory);
  CHECK(result == std::vector<float>(1000, sum));

  auto gathered = distx::start_all_gather(comm, std::vector<int>{comm.rank()}, std::vector<int>(ranks, -1));
  const std::vector<int> all = gathered.wait();
  for (std::size_t rank = 0; rank < ranks; ++rank) CHECK(all[rank] == static_cast<int>(rank));

  std::vector<int> borrowed(ranks, -1);
  auto sent = distx::start_all_gather(comm, std::vector<int>{comm.rank()}, borrowed);
  CHECK(sent.wait() == std::vector<int>{comm.rank()});
  CHECK(borrowed == all);

  CHECK(distx::start_all_reduce(comm, 1.0f, distx::sum).wait() == sum);
}

}  // namespace

TEST_CASE(
    "an asynchronous call owns the buffers that are moved in, and wait returns the receive buffer without a copy") {
  for (const int ranks : {1, 2, 3})
    distx::spawn(ranks, [](auto& self) {
      distx::ThreadCommunicator comm(self);
      check_moved_buffers(comm);
      distx::AnyCommunicator<> any(comm.share());
      check_moved_buffers(any);
      distx::Throttled throttled(comm.share(), {.latency = std::chrono::milliseconds(1)});
      check_moved_buffers(throttled);
    });
}

TEST_CASE("a handle that is dropped or assigned to waits for the call before its buffers are freed") {
  distx::spawn(2, [](auto& self) {
    distx::ThreadCommunicator comm(self);
    { const auto dropped = distx::start_all_reduce(comm, std::vector<float>(100'000, 1.0f), distx::sum); }
    auto pending = distx::start_all_reduce(comm, std::vector<float>(100'000, 1.0f), distx::sum);
    pending = distx::start_all_reduce(comm, std::vector<float>(1, 3.0f), distx::sum);
    CHECK(pending.wait() == std::vector<float>{6});
  });
}

TEST_CASE("a handle that was waited for, has thrown, or was moved from throws InvalidState") {
  const char* const words = "this handle has no buffer: it was waited for before, or moved from";
  distx::spawn(2, [&](auto& self) {
    distx::ThreadCommunicator comm(self);
    auto pending = distx::start_all_reduce(comm, std::vector<float>{1}, distx::sum);
    auto moved = std::move(pending);
    CHECK(moved.wait() == std::vector<float>{2});
    CHECK_THROWS_WITH_AS((void)moved.wait(), doctest::Contains(words), distx::InvalidState);
    CHECK_THROWS_WITH_AS((void)pending.wait(), doctest::Contains(words), distx::InvalidState);
    const auto length = static_cast<std::size_t>(1 + self.rank());
    auto fails = distx::start_all_reduce(comm, std::vector<float>(length), distx::sum);
    CHECK_THROWS_AS((void)fails.wait(), distx::MismatchError);
    CHECK_THROWS_WITH_AS((void)fails.wait(), doctest::Contains(words), distx::InvalidState);
  });
}
