// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/runtime/basic_communicator.hpp"

namespace distx::inline DISTX_ABI::detail {

namespace shared_memory {

class SharedMemoryBackend;

}  // namespace shared_memory

template <>
struct BackendTraits<shared_memory::SharedMemoryBackend> : HostBackend {};

}  // namespace distx::inline DISTX_ABI::detail
