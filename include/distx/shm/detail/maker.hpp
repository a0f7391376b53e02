// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/any_communicator.hpp"
#include "distx/comm/detail/communicator_makers.hpp"
#include "distx/shm/communicator.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Makes shared-memory communicators for `best_communicator()` once this header is included.
struct ShmMaker {
  template <Connector C>
  static AnyCommunicator<> make(C& connector, Timeout deadline) {
    return AnyCommunicator<>(ShmCommunicator(connector, deadline));
  }
};

ShmMaker maker_for(SharedMemoryTag);

}  // namespace distx::inline DISTX_ABI::detail
