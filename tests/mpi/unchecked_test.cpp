// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include "conformance/mismatches.hpp"
#include "mpi/world.hpp"

namespace {

/// Decorates a test case that runs on a few ranks, which stand for more.
test::Needs needs_few() {
  return {"2, 3 or 4 ranks", [] { return world().size() >= 2 && world().size() <= 4; }};
}

}  // namespace

TEST_CASE("without comparison, calls that differ end by their deadline and write to their operands only" *
          needs_few()) {
  conformance::Report report;
  conformance::Findings findings(report, world().rank(), world().size());
  constexpr std::chrono::milliseconds deadline(200);
  const auto make = [&] {
    world().barrier();
    return distx::MpiCommunicator(world(), {.deadline = deadline, .check = distx::Check::off});
  };
  // A row has at most two calls. A message that is revoked in transit is given 5 s, and the host may be busy.
  conformance::Mismatches::check_table(make, false, 2 * deadline + std::chrono::seconds(10), findings);
  world().barrier();
  CAPTURE(report.text());
  CHECK(report.empty());
}
