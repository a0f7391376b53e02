// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Shared memory among ranks that are threads: what a sanitizer can watch.
#include "distx/shm.hpp"
#include "conformance/backend.hpp"

conformance::Backend conformance::backend() {
  return thread_ranks([](auto& connector) { return distx::ShmCommunicator(connector, std::chrono::minutes(4)); });
}
