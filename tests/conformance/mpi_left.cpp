// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The ranks that mpirun has started, without collectives of MPI, as after the loss of others.
#include "conformance/backend.hpp"
#include "mpi/world.hpp"

conformance::Backend conformance::backend() {
  Backend backend{false, false, [](const auto& body) {
                    distx::MpiConnector host(MPI_COMM_WORLD, {.deadline = std::chrono::minutes(4)});
                    auto left = host.shrink(std::chrono::minutes(4));
                    body([&](distx::Timeout deadline) {
                      return Backend::Any(distx::MpiCommunicator(left, {.deadline = deadline}));
                    });
                  }};
  backend.threads = distx::MpiCommunicator::serves_threads();
  return backend;
}
