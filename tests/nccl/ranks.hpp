// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <string>
#include <vector>

#include "distx/cuda.hpp"
#include "distx/nccl.hpp"

#include "distx/comm/movement.hpp"
#include "distx/comm/point_to_point.hpp"
#include "distx/comm/reductions.hpp"
#include "distx/threads.hpp"
#include "message_thrown.hpp"
#include "needs.hpp"

// Ranks that are threads with a GPU each, and copies to and from their memory.
namespace nccl_test {

/// Decorates a test case that needs `count` GPUs, one per rank; with fewer it counts as skipped.
inline test::Needs needs_gpus(int count) {
  return {std::to_string(count) + " GPUs", [count] { return distx::cuda::device_count() >= count; }};
}

/// Calls `body(connector)` on ranks that have each its own GPU current.
template <class Body>
void on_ranks(int ranks, Body body) {
  distx::spawn(distx::threads(ranks, std::chrono::minutes(1)), [&](distx::ThreadConnector& connector) {
    distx::cuda::pick_device(connector);
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
