// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/cuda/detail/copy.hpp"
#include "distx/tensor/detail/box_runs.hpp"

// Stream-ordered copies of parts of tensors within a GPU's memory.
namespace distx::inline DISTX_ABI {

namespace cuda::detail {

/// Copies runs by a kernel; set by distx/cuda_kernels.cuh.
using CopyRuns = void(CudaStreamRef, std::byte* to, const std::byte* from, const distx::detail::BoxRuns&);
inline constinit CopyRuns* copy_runs_kernel = nullptr;

/// Copies runs by the copy engine, all runs of one dimension at once.
inline void copy_runs(CudaStreamRef stream, std::byte* to, const std::byte* from, const distx::detail::BoxRuns& runs) {
  constexpr std::size_t most_pitch = 2147483647;  // the limit of cudaMemcpy2DAsync
  const std::size_t last = runs.dimensions - 1;
  const bool rows = runs.dimensions > 0 && runs.to_step[last] <= most_pitch && runs.from_step[last] <= most_pitch;
  runs.for_each(rows ? 1 : 0, [&](std::size_t to_at, std::size_t from_at) {
    if (rows)
      check(cudaMemcpy2DAsync(to + to_at, runs.to_step[last], from + from_at, runs.from_step[last], runs.bytes,
                              runs.count[last], cudaMemcpyDefault, stream.native_handle()),
            "cudaMemcpy2DAsync");
    else
      check(cudaMemcpyAsync(to + to_at, from + from_at, runs.bytes, cudaMemcpyDefault, stream.native_handle()),
            "cudaMemcpyAsync");
  });
}

}  // namespace cuda::detail

namespace detail {

/// Enqueues the copy of a part of one tensor to another, as on the host. The kernel of distx/cuda_kernels.cuh is used
/// if the program has it; it is faster for many short runs.
inline void copy_box(CudaStreamRef stream, std::byte* to, const Box& to_whole, const std::byte* from,
                     const Box& from_whole, const Box& part, std::size_t element_bytes) {
  const BoxRuns runs(to_whole, from_whole, part, element_bytes);
  if (runs.bytes == 0) return;
  if (runs.dimensions > 0 && cuda::detail::copy_runs_kernel != nullptr)
    cuda::detail::copy_runs_kernel(stream, to, from, runs);
  else
    cuda::detail::copy_runs(stream, to, from, runs);
}

}  // namespace detail

}  // namespace distx::inline DISTX_ABI
