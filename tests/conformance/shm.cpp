// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Shared memory among thread ranks, which sanitizers can check.
#include "distx/shm.hpp"
#include "conformance/backend.hpp"

conformance::Backend conformance::backend() {
  return thread_ranks(
      [](auto& connector, distx::Timeout deadline) { return distx::ShmCommunicator(connector, deadline); });
}
