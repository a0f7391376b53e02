// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include "conformance/mismatches.hpp"
#include "mpi/world.hpp"

namespace {

/// Decorates a test case that runs on one number of ranks, which stands for the others.
test::Needs needs_exactly(int count) {
  return {"exactly " + std::to_string(count) + " ranks", [count] { return world().size() == count; }};
}

}  // namespace

TEST_CASE("without comparison, every call that differs between ranks ends, typed if it throws" * needs_exactly(3)) {
  conformance::Report report;
  conformance::Findings findings(report, world().rank(), world().size());
  const auto make = [] {
    world().barrier();
    return distx::MpiCommunicator(world(), {.deadline = std::chrono::milliseconds(200), .check = distx::Check::off});
  };
  conformance::Mismatches::check_uncompared(make, findings);
  world().barrier();
  CAPTURE(report.text());
  CHECK(report.empty());
}
