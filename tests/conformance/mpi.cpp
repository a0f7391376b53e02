// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The ranks that mpirun has started.
#include "conformance/backend.hpp"
#include "mpi/world.hpp"

conformance::Backend conformance::backend() {
  Backend backend{true, false, [](const auto& body) {
                    body([](distx::Timeout deadline) {
                      return Backend::Any(distx::MpiCommunicator(world(), {.deadline = deadline}));
                    });
                  }};
  backend.threads = distx::MpiCommunicator::serves_threads();
  return backend;
}
