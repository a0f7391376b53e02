// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// TCP on the loopback device among thread ranks.
#include "distx/gloo.hpp"
#include "conformance/backend.hpp"

conformance::Backend conformance::backend() {
  return thread_ranks([](auto& connector, distx::Timeout deadline) {
    return distx::GlooCommunicator(connector, {.deadline = deadline});
  });
}
