// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The thread of Gloo's device.
#include <doctest/doctest.h>
#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "distx/gloo.hpp"
#include "distx/threads.hpp"

namespace {

/// Returns the scheduling policies of this process's threads.
std::vector<int> policies() {
  std::vector<int> all;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task"))
    all.push_back(::sched_getscheduler(std::stoi(thread.path().filename().string())));
  return all;
}

TEST_CASE("Gloo's thread does not preempt the threads that wake it") {
  const auto batch = [] {
    const auto all = policies();
    return std::count(all.begin(), all.end(), SCHED_BATCH);
  };
  CHECK(batch() == 0);
  distx::SelfConnector connector;
  distx::GlooCommunicator comm(connector);
  CHECK(batch() == 1);
  CHECK(::sched_getscheduler(0) == SCHED_OTHER);
  const auto part = comm.split(0, 0);
  CHECK(batch() == 1);  // a part shares its parent's device
}

}  // namespace
