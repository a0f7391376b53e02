// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/communicator_makers.hpp"
#include "distx/mpi/communicator.hpp"

namespace distx::mpi {

/// What `best_communicator()` knows of MPI once this header is included.
inline const CommunicatorMaker maker{
    .name = "mpi",
    .make = [](AnyConnector& connector, Timeout deadline) {
      if (const auto* borrowed = connector.target<detail::ConnectorRef<MpiConnector>>(); borrowed != nullptr)
        return AnyCommunicator<>(MpiCommunicator(borrowed->get(), {.deadline = deadline}));
      return AnyCommunicator<>(MpiCommunicator(connector, {.deadline = deadline}));
    },
    .serves_threads = [] { return MpiCommunicator::serves_threads(); },
};

inline const bool maker_is_registered = register_communicator(maker);

}  // namespace distx::mpi
