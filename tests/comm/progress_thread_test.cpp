// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Tasks run one at a time and in order, on the progress thread or on a rank that waits.
#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "distx/comm/runtime/progress_thread.hpp"
#include "distx/core/detail/wait.hpp"
#include "distx/threads.hpp"

namespace {

using distx::detail::ProgressThread;

struct Job final : distx::detail::ProgressTask {
  explicit Job(std::function<void()> f) : body(std::move(f)) {}
  void run() override { body(); }
  std::function<void()> body;
};

/// Keeps the progress thread busy with a task until it is opened.
struct Gate {
  std::atomic<bool> reached{false}, open{false};
  std::shared_ptr<Job> job = std::make_shared<Job>([this] {
    reached = true;
    while (!open) std::this_thread::yield();
  });
  void wait_until_reached() const {
    while (!reached) std::this_thread::yield();
  }
};

TEST_CASE("tasks run in order and one at a time, while another thread waits for them") {
  ProgressThread progress;
  std::vector<int> order;  // unguarded: two at once would be a race
  for (int round = 0; round < 300; ++round) {
    order.clear();
    std::vector<std::shared_ptr<Job>> jobs;
    for (int i = 0; i < 4; ++i) {
      jobs.push_back(std::make_shared<Job>([&order, i] { order.push_back(i); }));
      progress.submit(jobs.back());
    }
    progress.wait(*jobs[3]);
    REQUIRE(order == std::vector{0, 1, 2, 3});
    for (const auto& job : jobs) REQUIRE(job->done());
  }
}

TEST_CASE("a waiting thread does not overtake a running task") {
  ProgressThread progress;
  Gate gate;
  progress.submit(gate.job);
  gate.wait_until_reached();
  const auto next = std::make_shared<Job>([&] { CHECK(gate.open.load()); });
  progress.submit(next);
  std::thread opener([&] {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);  // by then the waiter is asleep
    while (std::chrono::steady_clock::now() < end) std::this_thread::yield();
    gate.open = true;
  });
  progress.wait(*next);
  CHECK(gate.job->done());
  opener.join();
}

TEST_CASE("tasks that no thread waits for are run as well") {
  ProgressThread progress;
  for (int round = 0; round < 300; ++round) {
    // Long enough for the progress thread to wake up and find a task already running.
    const auto awaited = std::make_shared<Job>([] {
      const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(300);
      while (std::chrono::steady_clock::now() < end) {
      }
    });
    const auto left = std::make_shared<Job>([] {});
    progress.submit(awaited);
    progress.submit(left);
    progress.wait(*awaited);
    const auto done = [&] { return left->done(); };
    REQUIRE(distx::detail::wait_until(std::chrono::seconds(20), done, [] { return false; }) ==
            distx::detail::WaitEnd::ready);
  }
}

TEST_CASE("an error belongs to its task, whichever thread runs it") {
  ProgressThread progress;
  for (int round = 0; round < 100; ++round) {
    const auto wrong = std::make_shared<Job>([] { throw std::runtime_error("wrong"); });
    const auto right = std::make_shared<Job>([] {});
    progress.submit(wrong);
    progress.submit(right);
    progress.wait(*right);
    CHECK_NOTHROW(right->rethrow());
    CHECK_THROWS_WITH(wrong->rethrow(), "wrong");
  }
}

TEST_CASE("a waiting thread runs a task that the progress thread has not begun") {
  ProgressThread progress;
  int helped = 0;
  for (int round = 0; round < 100000 && helped == 0; ++round) {
    std::thread::id runner;
    const auto job = std::make_shared<Job>([&] { runner = std::this_thread::get_id(); });
    progress.submit(job);
    progress.wait(*job);
    helped += runner == std::this_thread::get_id() ? 1 : 0;
  }
  CHECK(helped > 0);
}

}  // namespace
