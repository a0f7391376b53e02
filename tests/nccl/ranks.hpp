// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <vector>

#include "distx/cuda.hpp"
#include "distx/nccl.hpp"

#include "distx/comm/movement.hpp"
#include "distx/comm/point_to_point.hpp"
#include "distx/comm/reductions.hpp"
#include "distx/connect/spawn.hpp"
#include "words_thrown.hpp"

// Ranks that are threads with a GPU each, and what lies in their memory.
namespace nccl_test {

/// Whether there are GPUs for so many ranks.
inline bool has(int ranks) { return distx::device_count() >= ranks; }

/// Calls `body(connector)` on ranks that have each its own GPU current.
template <class Body>
void on_ranks(int ranks, Body body) {
  distx::spawn(distx::threads(ranks, std::chrono::minutes(1)), [&](distx::ThreadConnector& connector) {
    distx::pick_device(connector);
    body(connector);
  });
}

template <class T>
distx::Buffer<T, distx::Cuda> on_gpu(const std::vector<T>& values) {
  distx::Buffer<T, distx::Cuda> buffer(values.size(), distx::uninitialized);
  distx::cuda::detail::check(cudaMemcpy(buffer.data(), values.data(), values.size() * sizeof(T), cudaMemcpyDefault),
                             "cudaMemcpy");
  return buffer;
}
template <class T>
std::vector<T> on_host(distx::Span<T, distx::Cuda> values) {
  std::vector<T> copy(values.size());
  distx::cuda::detail::check(cudaMemcpy(copy.data(), values.data(), values.size() * sizeof(T), cudaMemcpyDefault),
                             "cudaMemcpy");
  return copy;
}
template <class T>
std::vector<T> on_host(const distx::Buffer<T, distx::Cuda>& buffer) {
  return on_host(buffer.span());
}

}  // namespace nccl_test
