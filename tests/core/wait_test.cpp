// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// How threads wait for each other.
#include <doctest/doctest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "distx/core/detail/wait.hpp"

namespace {

using namespace std::chrono_literals;
using distx::detail::Bell;
using distx::detail::wait_until;
using distx::detail::WaitEnd;

TEST_CASE("a ring ends a sleep before its limit") {
  Bell bell;
  std::atomic<bool> done{false};
  const auto begin = std::chrono::steady_clock::now();
  std::jthread sleeper([&] { bell.sleep([&] { return done.load(); }, 60s); });
  wait_until(60s, [&] { return bell.sleepers.load() == 1; }, [] { return false; });
  done = true;
  bell.ring();
  sleeper.join();
  CHECK(std::chrono::steady_clock::now() - begin < 30s);
  CHECK(bell.sleepers.load() == 0);
}

TEST_CASE("no thread sleeps without a reason, nor beyond the limit") {
  Bell bell;
  const auto begin = std::chrono::steady_clock::now();
  bell.sleep([] { return true; }, 60s);
  bell.sleep([] { return false; }, 1ms);
  bell.sleep([] { return false; }, -1ms);
  CHECK(std::chrono::steady_clock::now() - begin < 30s);
}

TEST_CASE("many threads that sleep on one bell wait for each other step by step") {
  constexpr int threads = 40, steps = 50;
  distx::detail::Gate gate;
  std::atomic<int> arrived{0};
  std::atomic<int> failures{0};
  {
    std::vector<std::jthread> all;
    for (int i = 0; i < threads; ++i)
      all.emplace_back([&] {
        for (int step = 1; step <= steps; ++step) {
          if (++arrived == threads * step) gate.open(static_cast<std::uint64_t>(step));
          const auto end = wait_until(
              60s, [&] { return gate.is_open(static_cast<std::uint64_t>(step)); }, [] { return false; },
              distx::detail::SleepOn{[&]() -> Bell& { return gate.bell; }, 60s});
          if (end != WaitEnd::ready) ++failures;
        }
      });
  }
  CHECK(failures == 0);
  CHECK(arrived == threads * steps);
}

TEST_CASE("a wait whose thread sleeps on a bell ends at its deadline, and when it is stopped") {
  Bell bell;
  const auto not_yet = [] { return false; };
  for (const bool patient : {false, true}) {
    const distx::detail::SleepOn sleep{[&]() -> Bell& { return bell; }, 10ms, distx::detail::in_process, patient};
    CHECK(wait_until(5ms, not_yet, not_yet, sleep) == WaitEnd::expired);
    CHECK(wait_until(60s, not_yet, [] { return true; }, sleep) == WaitEnd::stopped);
  }
}

TEST_CASE("a patient wait polls as long as its thread has worked since its last long wait, at most 4 ms") {
  distx::detail::Backoff backoff;
  const distx::detail::Backoff::time_point ended{1h};
  backoff.outlasted(ended, ended);
  CHECK(backoff.patience(ended) == 0ns);
  CHECK(backoff.patience(ended + 7us) == 7us);
  CHECK(backoff.patience(ended + 1s) == 4ms);
}

}  // namespace
