// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// The communicators of threads.hpp in the compiled form: see compiled.hpp.
#include "distx/comm/detail/compiled_communicator.hpp"
#include "distx/comm/serial.hpp"
#include "distx/comm/threads.hpp"

namespace distx::inline DISTX_ABI::detail {

DISTX_COMPILED_COMMUNICATOR(SerialCommunicator, shared_memory::SharedMemoryBackend);

DISTX_COMPILED_COMMUNICATOR(ThreadCommunicator, shared_memory::SharedMemoryBackend);

}  // namespace distx::inline DISTX_ABI::detail
