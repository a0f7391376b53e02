// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <functional>
#include <string>

#include <distx/comm/any_communicator.hpp>
#include <distx/connect/connector.hpp>

namespace CLI {
class App;
}

namespace examples {

/// The flags that choose the communicator.
struct Backend {
  std::string name = "auto";
  int ranks = 2;

  void describe(CLI::App& app);

  /// Calls `body(comm)` on every rank, with a communicator of the chosen backend. Collective.
  /// @throws ErrorPrinted if the launcher does not support the backend
  void run(distx::AnyConnector& connector, const std::function<void(distx::AnyCommunicator<>)>& body) const;
};

/// Returns a communicator of processes that a launcher has started. Collective.
/// @param backend  auto, shm, gloo or mpi
/// @param deadline  of calls over MPI
/// @throws distx::ConnectError if the launcher, or this build, does not support the backend
[[nodiscard]] distx::AnyCommunicator<> communicator_of_processes(distx::AnyConnector& connector,
                                                                 const std::string& backend,
                                                                 distx::Timeout deadline = distx::default_deadline);

}  // namespace examples
