// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// Distributed training of LibTorch's modules on GPUs, and collectives on its tensors there.
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include "distx/cuda.hpp"
#include "distx/torch.hpp"

namespace distx_torch::inline DISTX_ABI::detail {

/// The current GPU of this thread, and LibTorch's current stream there.
template <>
struct Place<distx::Cuda> {
  [[nodiscard]] static at::Device device() { return {at::kCUDA, c10::cuda::current_device()}; }
  [[nodiscard]] static distx::CudaStreamRef stream() { return c10::cuda::getCurrentCUDAStream().stream(); }
};

}  // namespace distx_torch::inline DISTX_ABI::detail
