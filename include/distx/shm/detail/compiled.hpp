// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// The templates of shm/ in the compiled form. DISTX_COMPILED is `extern` where they are declared,
// and nothing where they are defined.
#include "distx/comm/detail/compiled_communicator.hpp"
#include "distx/shm/communicator.hpp"

namespace distx::inline DISTX_ABI {

DISTX_COMPILED template ShmCommunicator::ShmCommunicator(AnyConnector&, Timeout);

}  // namespace distx::inline DISTX_ABI

namespace distx::inline DISTX_ABI::detail {

DISTX_COMPILED_COMMUNICATOR(ShmCommunicator, shared_memory::SharedMemoryBackend);

}  // namespace distx::inline DISTX_ABI::detail
