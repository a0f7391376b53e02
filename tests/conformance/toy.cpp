// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/backend.hpp"
#include "conformance/toy_communicator.hpp"

conformance::Backend conformance::backend() {
  return thread_ranks(
      [](auto& connector, distx::Timeout deadline) { return toy::ToyCommunicator(connector, deadline); });
}
