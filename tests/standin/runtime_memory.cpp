// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The CUDA runtime's functions that allocate.
#include <cstring>

#include "standin/device.hpp"
#include "standin/memory.hpp"
#include "standin/runtime.hpp"

using namespace standin;

namespace {

constexpr std::size_t alignment = 256;

void forbid_while_capturing() { require(!capturing_globally(), cudaErrorStreamCaptureUnsupported); }

}  // namespace

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  return runtime_called("cudaMalloc", [&] {
    require(memory != nullptr, cudaErrorInvalidValue);
    const int device = current_device();
    forbid_while_capturing();
    *memory = nullptr;
    if (bytes == 0) return;
    *memory = allocate(device, bytes, alignment, false);
    require(*memory != nullptr, cudaErrorMemoryAllocation);
  });
}

cudaError_t cudaFree(void* memory) {
  return runtime_called("cudaFree", [&] {
    const int device = current_device();
    forbid_while_capturing();
    if (memory == nullptr) return;
    const Place where = place(memory);
    require(where.kind == Kind::device && where.begin == memory, cudaErrorInvalidValue);
    wait_for_device(where.device);
    if (device != where.device) wait_for_device(device);
    release(memory, forget(memory));
  });
}

cudaError_t cudaMallocAsync(void** memory, size_t bytes, cudaStream_t handle) {
  return runtime_called("cudaMallocAsync", [&] {
    require(memory != nullptr, cudaErrorInvalidValue);
    const auto stream = stream_of(handle, current_device());
    *memory = nullptr;
    if (bytes == 0) return;
    void* const begin = allocate(stream->device, bytes, alignment, true);
    require(begin != nullptr, cudaErrorMemoryAllocation);
    *memory = begin;
    // Whoever writes on another stream before this one has come here loses what was written.
    enqueue(stream, [=] { std::memset(begin, poison_of_new, bytes); });
  });
}

cudaError_t cudaFreeAsync(void* memory, cudaStream_t handle) {
  return runtime_called("cudaFreeAsync", [&] {
    const auto stream = stream_of(handle, current_device());
    if (memory == nullptr) return;
    const Place where = place(memory);
    require(where.kind == Kind::device && where.begin == memory && where.in_order, cudaErrorInvalidValue);
    const std::size_t bytes = forget(memory);
    enqueue(stream, [=] {
      std::memset(memory, poison_of_freed, bytes);
      release(memory, bytes);
    });
  });
}

cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned flags) {
  return runtime_called("cudaHostAlloc", [&] {
    require(memory != nullptr, cudaErrorInvalidValue);
    require((flags & ~unsigned{cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined}) == 0,
            cudaErrorInvalidValue);
    static_cast<void>(current_device());
    *memory = nullptr;
    if (bytes == 0) return;
    *memory = allocate_host(bytes);
    require(*memory != nullptr, cudaErrorMemoryAllocation);
  });
}

cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  return runtime_called("cudaMallocHost", [&] {
    require(memory != nullptr, cudaErrorInvalidValue);
    static_cast<void>(current_device());
    *memory = nullptr;
    if (bytes == 0) return;
    *memory = allocate_host(bytes);
    require(*memory != nullptr, cudaErrorMemoryAllocation);
  });
}

cudaError_t cudaFreeHost(void* memory) {
  return runtime_called("cudaFreeHost", [&] {
    const int device = current_device();
    if (memory == nullptr) return;
    const Place where = place(memory);
    require(where.kind == Kind::pinned && where.begin == memory, cudaErrorInvalidValue);
    wait_for_device(device);
    require(free_host(memory), cudaErrorInvalidValue);
  });
}

cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned) {
  return runtime_called("cudaHostRegister", [&] {
    static_cast<void>(current_device());
    require(memory != nullptr && bytes > 0, cudaErrorInvalidValue);
    require(register_host(memory, bytes), cudaErrorHostMemoryAlreadyRegistered);
  });
}

cudaError_t cudaHostUnregister(void* memory) {
  return runtime_called("cudaHostUnregister", [&] {
    wait_for_device(current_device());
    require(unregister_host(memory), cudaErrorHostMemoryNotRegistered);
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  return runtime_called("cudaPointerGetAttributes", [&] {
    require(attributes != nullptr, cudaErrorInvalidValue);
    const Place where = place(pointer);
    require(where.kind != Kind::nothing, cudaErrorInvalidValue);
    *attributes = cudaPointerAttributes{};
    attributes->device = where.device;
    if (where.kind == Kind::pageable) {
      attributes->type = cudaMemoryTypeUnregistered;
      attributes->device = cudaInvalidDeviceId;
      attributes->hostPointer = const_cast<void*>(pointer);
      return;
    }
    attributes->type = where.kind == Kind::device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    attributes->devicePointer = const_cast<void*>(pointer);
    if (where.kind == Kind::pinned) attributes->hostPointer = const_cast<void*>(pointer);
  });
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return runtime_called("cudaMemGetInfo", [&] {
    require(free != nullptr && total != nullptr, cudaErrorInvalidValue);
    *free = free_bytes(current_device());
    *total = total_bytes();
  });
}
