// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// The templates of comm/ in the compiled part of the library. DISTX_COMPILED is `extern` where they are declared,
// and nothing where they are defined.
#include "distx/comm/detail/compiled_communicator.hpp"
#include "distx/comm/serial.hpp"
#include "distx/comm/threads.hpp"

namespace distx {

DISTX_COMPILED template class AnyCommunicator<Host>;

}  // namespace distx

namespace distx::detail {

DISTX_COMPILED_COMMUNICATOR(SerialCommunicator, shared_memory::SharedMemoryBackend);

DISTX_COMPILED_COMMUNICATOR(ThreadCommunicator, shared_memory::SharedMemoryBackend);

}  // namespace distx::detail
