// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>

#include "distx/cuda/device.hpp"
#include "distx/cuda/stream.hpp"

namespace distx::cuda {

/// Threads of each block of every kernel: whole warps.
inline constexpr unsigned block_threads = 256;

/// As many blocks as the work wants, at most so many for each of the current GPU's multiprocessors.
[[nodiscard]] inline unsigned blocks_for(std::size_t wanted, unsigned per_multiprocessor) {
  int processors = 0;
  detail::check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, current_device()),
                "cudaDeviceGetAttribute");
  const std::size_t most = static_cast<std::size_t>(processors) * per_multiprocessor;
  return static_cast<unsigned>(std::clamp<std::size_t>(wanted, 1, std::max<std::size_t>(most, 1)));
}

/// Enqueues a kernel: the one place that launches any.
template <class... Parameters, class... Arguments>
void launch(CudaStreamRef stream, unsigned blocks, unsigned threads, void (*kernel)(Parameters...),
            const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.stream = stream.native_handle();
  detail::check(cudaLaunchKernelEx(&config, kernel, arguments...), "cudaLaunchKernelEx");
}

}  // namespace distx::cuda
