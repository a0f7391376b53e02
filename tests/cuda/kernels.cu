// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The one file of the tests' programs that nvcc compiles.
#include <distx/cuda_kernels.cuh>
#include <distx/optim/lamb.hpp>
#include <distx/optim/muon.hpp>

#include "cuda/lion.hpp"
#include "cuda/tensor_kernels.hpp"

namespace {

[[maybe_unused]] const bool registered =
    distx::cuda::register_optimizer<Lion>() && distx::cuda::register_optimizer<PlainDescent>() &&
    distx::cuda::register_optimizer<distx::LAMB>() && distx::cuda::register_optimizer<distx::Muon>() &&
    distx::cuda::register_function<tensor_kernels::Cube, float, float>();

__global__ void twice_plus_of(std::size_t size, const float* x, const float* y, float* out) {
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < size;
       i += static_cast<std::size_t>(gridDim.x) * blockDim.x)
    out[i] = 2 * x[i] + y[i];
}

}  // namespace

void tensor_kernels::twice_plus(distx::CudaStreamRef stream, distx::Span<const float, distx::Cuda> x,
                                distx::Span<const float, distx::Cuda> y, distx::Span<float, distx::Cuda> out) {
  if (!out.empty()) distx::cuda::launch(stream, 1, 256, twice_plus_of, out.size(), x.data(), y.data(), out.data());
}
