// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/core/space.hpp"
#include "distx/cuda/event.hpp"

namespace distx::inline DISTX_ABI {

namespace cuda::detail::tensors {

/// Makes this namespace one of those in which functions on a GPU's memory are looked up.
struct Kernels {};

}  // namespace cuda::detail::tensors

/// The memory of one of this process's GPUs. Streams order the work on it.
struct Cuda : cuda::detail::tensors::Kernels {
  using stream = CudaStreamRef;
  using event = CudaEvent;
  using owned_stream = CudaStream;
  static constexpr std::string_view name = "cuda";
  static constexpr bool host_accessible = false;
};

static_assert(MemorySpace<Cuda>);

}  // namespace distx::inline DISTX_ABI
