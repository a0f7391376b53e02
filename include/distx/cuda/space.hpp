// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/core/space.hpp"
#include "distx/cuda/event.hpp"

namespace distx::inline DISTX_ABI {

/// The memory of one of this process's GPUs. Streams order the work on it.
struct Cuda {
  using stream = CudaStreamRef;
  using event = CudaEvent;
  using owned_stream = CudaStream;
  static constexpr std::string_view name = "cuda";
  static constexpr bool host_accessible = false;
};

static_assert(MemorySpace<Cuda>);

}  // namespace distx::inline DISTX_ABI
