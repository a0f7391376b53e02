// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/backend.hpp"

conformance::Backend conformance::backend() {
  return thread_ranks([](auto& connector) { return distx::ThreadCommunicator(connector, std::chrono::minutes(4)); });
}
