// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <distx/comm.hpp>
#include <distx/cuda.hpp>
#include <distx/file.hpp>
#include <distx/nccl.hpp>
#include <distx/threads.hpp>

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "needs.hpp"
#include "run_cases.hpp"

// The ranks of tests on GPUs: threads of this process with one GPU each, or processes that a launcher has
// started, which may share one.
namespace gpu_ranks {

/// The processes that a launcher has started, or this one alone.
inline distx::AnyConnector& world() {
  static distx::AnyConnector connector = distx::connect();
  return connector;
}

/// Decorates a test case that needs exactly `count` ranks; else it counts as skipped.
inline test::Needs needs_ranks(int count) {
  return {std::to_string(count) + " ranks",
          [count] { return world().size() > 1 ? world().size() == count : distx::cuda::device_count() >= count; }};
}

/// Runs `f(comm)` on `ranks` ranks if there are that many; no wait in it lasts longer than 20 seconds.
/// @return whether it was run
template <class F>
bool on_gpus(int ranks, F&& f, distx::NcclOptions how = {}) {
  using namespace std::chrono_literals;
  how.deadline = 20s;
  if (world().size() > 1) {
    if (!test::Attempts::count(ranks == world().size())) return false;
    distx::cuda::pick_device(world(), {.share = true});
    distx::NcclCommunicator comm(world(), how);
    f(comm);
    return true;
  }
  if (!test::Attempts::count(ranks <= distx::cuda::device_count())) return false;
  distx::spawn(distx::threads(ranks, 20s), [&](distx::ThreadConnector& connector) {
    const distx::cuda::DeviceGuard guard(connector.rank());
    distx::NcclCommunicator comm(connector, how);
    f(comm);
  });
  return true;
}

/// As `on_gpus`, but on one communicator for all calls with this rounding where the ranks are processes, or this one
/// alone: NCCL takes half a second to end one.
template <class F>
void on_same_gpus(int ranks, distx::NcclRounding rounding, F&& f) {
  if (ranks != world().size()) {
    on_gpus(ranks, f, {.rounding = rounding});
    return;
  }
  test::Attempts::count(true);
  static std::map<distx::NcclRounding, distx::NcclCommunicator> made;
  static const bool ends = (test::at_end().emplace_back([] { made.clear(); }), true);
  static_cast<void>(ends);
  auto found = made.find(rounding);
  if (found == made.end()) {
    distx::cuda::pick_device(world(), {.share = true});
    const distx::NcclOptions how{.deadline = std::chrono::seconds(20), .rounding = rounding};
    found = made.emplace(rounding, distx::NcclCommunicator(world(), how)).first;
  }
  try {
    f(found->second);
  } catch (...) {
    made.erase(found);
    throw;
  }
}

/// Whether this process is, or has, rank 0.
inline bool speaks() { return world().rank() == 0; }

}  // namespace gpu_ranks
