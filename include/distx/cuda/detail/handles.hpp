// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cuda_runtime_api.h>

#include "distx/core/unique_handle.hpp"

// Owners of CUDA's handles. Closing one never throws: a handle that cannot be closed was lost with its device.
namespace distx::inline DISTX_ABI::cuda::detail {

struct stream_traits {
  using handle_type = cudaStream_t;
  static handle_type null() noexcept { return nullptr; }
  static void close(handle_type stream) noexcept { static_cast<void>(cudaStreamDestroy(stream)); }
};

struct event_traits {
  using handle_type = cudaEvent_t;
  static handle_type null() noexcept { return nullptr; }
  static void close(handle_type event) noexcept { static_cast<void>(cudaEventDestroy(event)); }
};

/// Memory of `cudaMallocHost`.
struct pinned_traits {
  using handle_type = void*;
  static handle_type null() noexcept { return nullptr; }
  static void close(handle_type memory) noexcept { static_cast<void>(cudaFreeHost(memory)); }
};

/// Memory of a GPU, and how it was allocated: memory of a pool is freed by its stream.
struct DeviceMemory {
  void* address = nullptr;
  cudaStream_t stream = nullptr;
  bool in_stream_order = false;
  int device = 0;  ///< to which `stream` belongs

  friend bool operator==(const DeviceMemory&, const DeviceMemory&) = default;
};

struct device_memory_traits {
  using handle_type = DeviceMemory;
  static handle_type null() noexcept { return {}; }
  static void close(const handle_type& memory) noexcept {
    if (!memory.in_stream_order) {
      static_cast<void>(cudaFree(memory.address));
      return;
    }
    int current = memory.device;
    static_cast<void>(cudaGetDevice(&current));
    if (current != memory.device) static_cast<void>(cudaSetDevice(memory.device));
    static_cast<void>(cudaFreeAsync(memory.address, memory.stream));
    if (current != memory.device) static_cast<void>(cudaSetDevice(current));
  }
};

using unique_stream = unique_handle<stream_traits>;
using unique_event = unique_handle<event_traits>;
using unique_pinned = unique_handle<pinned_traits>;
using unique_device_memory = unique_handle<device_memory_traits>;

}  // namespace distx::inline DISTX_ABI::cuda::detail
