// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <string>

#include <distx/mpi.hpp>

#include "needs.hpp"

/// Returns the connector of the ranks that mpirun has started; main connects them before the first test.
distx::MpiConnector& world();

/// Decorates a test case that needs `count` ranks; with fewer it is skipped.
inline test::Needs needs_ranks(int count) {
  return {std::to_string(count) + " ranks or more", [count] { return world().size() >= count; }};
}

/// Decorates a test case that needs MPI_THREAD_MULTIPLE.
inline test::Needs needs_threads() {
  return {"MPI_THREAD_MULTIPLE",
          [] { return world().thread_level() == distx::MpiConnectorOptions::ThreadLevel::multiple; }};
}
