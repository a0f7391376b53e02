// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/communicator_makers.hpp"
#include "distx/shm/communicator.hpp"

namespace distx::shm {

/// What `best_communicator()` knows of shared memory once this header is included.
inline const CommunicatorMaker maker{
    .name = "shm",
    .make = [](AnyConnector& connector, Timeout deadline) {
      return AnyCommunicator<>(ShmCommunicator(connector, deadline));
    },
    .serves_threads = [] { return true; },
};

inline const bool maker_is_registered = register_communicator(maker);

}  // namespace distx::shm
