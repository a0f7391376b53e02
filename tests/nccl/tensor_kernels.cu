// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tensor_kernels.hpp"

#include <distx/cuda_kernels.cuh>

namespace tensor_kernels {

namespace {

__global__ void twice_plus_of(std::size_t size, const float* x, const float* y, float* out) {
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < size;
       i += static_cast<std::size_t>(gridDim.x) * blockDim.x)
    out[i] = 2 * x[i] + y[i];
}

[[maybe_unused]] const bool has_cube = distx::register_function<Cube, float, float>();

}  // namespace

void twice_plus(distx::CudaStreamRef stream, distx::Span<const float, distx::Cuda> x,
                distx::Span<const float, distx::Cuda> y, distx::Span<float, distx::Cuda> out) {
  if (!out.empty())
    distx::cuda::launch(stream, 1, 256, twice_plus_of, out.size(), x.data(), y.data(), out.data());
}

}  // namespace tensor_kernels
