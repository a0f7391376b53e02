// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/cuda/kernels/launch.cuh"

// Kernels in which a warp processes one row.
namespace distx::inline DISTX_ABI::cuda::detail {

__device__ inline unsigned lane() { return threadIdx.x % 32; }

/// Calls body(row) with each row, in all threads of a warp.
template <class Body>
__global__ void __launch_bounds__(block_threads) rows_kernel(Body body, std::size_t rows) {
  const std::size_t row = (std::size_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
  if (row < rows) body(row);
}
template <class Body>
void for_each_row(CudaStreamRef stream, std::size_t rows, const Body& body) {
  constexpr std::size_t warps = block_threads / 32;
  enqueue<&rows_kernel<Body>>(stream, (rows + warps - 1) / warps, block_threads, body, rows);
}

/// Calls f with each of this lane's columns.
template <class F>
__device__ void for_each_column(std::size_t columns, F&& f) {
  for (std::size_t i = lane(); i < columns; i += 32) f(i);
}

}  // namespace distx::inline DISTX_ABI::cuda::detail
