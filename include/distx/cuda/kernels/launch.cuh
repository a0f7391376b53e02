// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "distx/cuda/device.hpp"
#include "distx/cuda/stream.hpp"

namespace distx::inline DISTX_ABI::cuda {

/// Threads in each block of distx's kernels: a multiple of a warp.
inline constexpr unsigned block_threads = 256;

/// Returns `wanted`, but at least 1 and at most `per_multiprocessor` for each of the current GPU's multiprocessors.
[[nodiscard]] inline unsigned blocks_for(std::size_t wanted, unsigned per_multiprocessor) {
  int processors = 0;
  detail::check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, current_device()),
                "cudaDeviceGetAttribute");
  const std::size_t most = static_cast<std::size_t>(processors) * per_multiprocessor;
  return static_cast<unsigned>(std::clamp<std::size_t>(wanted, 1, std::max<std::size_t>(most, 1)));
}

/// Enqueues a kernel on a stream of the current GPU.
/// @throws Error if CUDA rejects the launch
template <class... Parameters, class... Arguments>
void launch(CudaStreamRef stream, unsigned blocks, unsigned threads, void (*kernel)(Parameters...),
            const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.stream = stream.native_handle();
  detail::check(cudaLaunchKernelEx(&config, kernel, arguments...), "cudaLaunchKernelEx");
}

namespace detail {

/// The kernels that this program may enqueue.
[[nodiscard]] inline std::vector<const void*>& kernel_list() {
  static std::vector<const void*> list;
  return list;
}
template <auto* Kernel>
inline const bool listed = (kernel_list().push_back(reinterpret_cast<const void*>(Kernel)), true);

/// Enqueues a kernel, and lists it before main for `load_kernels`.
/// @throws InvalidArgument if there are more blocks than CUDA can launch
template <auto* Kernel, class... Arguments>
void enqueue(CudaStreamRef stream, std::size_t blocks, unsigned threads, const Arguments&... arguments) {
  static_cast<void>(listed<Kernel>);
  if (blocks > std::size_t{std::numeric_limits<int>::max()})
    throw InvalidArgument("an array is too large for a kernel: it needs " + std::to_string(blocks) +
                          " blocks, and CUDA launches at most 2^31 - 1");
  launch(stream, static_cast<unsigned>(blocks), threads, Kernel, arguments...);
}

/// Loads all listed kernels onto the current GPU.
inline void load_listed_kernels() {
  for (const void* kernel : kernel_list()) {
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
  }
}

/// Returns the piece that has a tile of a launch whose table of `count` pieces says which tile is the first of each.
template <class Table>
__device__ unsigned piece_of(const Table& table, unsigned tile) {
  unsigned piece = 0, end = table.count;
  while (end - piece > 1) {
    const unsigned middle = (piece + end) / 2;
    if (table.first_tile[middle] <= tile)
      piece = middle;
    else
      end = middle;
  }
  return piece;
}

/// Memory that the threads of a block share. Each use of it begins and ends with a barrier.
[[maybe_unused]] static __device__ void* block_memory() {
  alignas(16) __shared__ unsigned char memory[256];
  return memory;
}

}  // namespace detail

}  // namespace distx::inline DISTX_ABI::cuda
