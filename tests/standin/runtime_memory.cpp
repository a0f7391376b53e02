// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The CUDA runtime's functions that allocate.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "standin/capture.hpp"
#include "standin/device.hpp"
#include "standin/memory.hpp"
#include "standin/runtime.hpp"

using namespace standin;

namespace {

constexpr std::size_t alignment = 256;

Pool& pool_of(cudaMemPool_t handle) {
  require(handle != nullptr, cudaErrorInvalidValue);
  Pool& pool = *reinterpret_cast<Pool*>(handle);
  forbid_destroyed("memory pool", pool.destroyed);
  return pool;
}

/// What cudaMallocAsync takes from.
Pool& default_pool(int device) {
  static auto* pools = [] {
    auto* all = new std::array<Pool, most_devices>;
    for (std::size_t i = 0; i < most_devices; ++i) (*all)[i].device = static_cast<int>(i);
    return all;
  }();
  return (*pools)[static_cast<std::size_t>(device)];
}

/// Memory of an allocation that was captured, which exists at one address as long as a graph or an instance of it.
struct GraphMemory {
  void* begin;
  std::size_t bytes;
  Pool* pool;

  GraphMemory(void* at, std::size_t size, Pool* from) : begin(at), bytes(size), pool(from) {}
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;
  ~GraphMemory() {
    release(begin, forget(begin));
    pool->used -= bytes;
  }
};

void* allocate_in_order(Pool& pool, std::size_t bytes, const std::shared_ptr<Stream>& stream) {
  if (bytes == 0) return nullptr;
  void* const begin = allocate(pool.device, bytes, alignment, &pool);
  require(begin != nullptr, cudaErrorMemoryAllocation);
  if (const std::uint64_t used = pool.used += bytes; pool.reserved < used) pool.reserved = used;
  std::shared_ptr<GraphMemory> of_graph;  // the node owns it
  {
    const std::lock_guard lock(capture_mutex());
    if (const auto capture = capture_of(*stream)) {
      of_graph = std::make_shared<GraphMemory>(begin, bytes, &pool);
      capture->memory.insert(begin);
    }
  }
  // Writes of another stream before this point are lost.
  enqueue(stream, [=] {
    static_cast<void>(of_graph);
    std::memset(begin, poison_of_new, bytes);
  });
  return begin;
}

/// Whether a capture frees what it has allocated. A graph that freed other memory could be launched once only.
bool freed_in_capture(const Stream& stream, void* memory) {
  const std::lock_guard lock(capture_mutex());
  const auto capture = capture_of(stream);
  if (capture == nullptr) return false;
  require(capture->memory.erase(memory) == 1, cudaErrorStreamCaptureUnsupported);
  return true;
}

}  // namespace

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  return runtime_called("cudaMalloc", [&] {
    require(memory != nullptr, cudaErrorInvalidValue);
    const int device = current_device();
    forbid_while_capturing();
    *memory = nullptr;
    if (bytes == 0) return;
    *memory = allocate(device, bytes, alignment, nullptr);
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
    *memory = allocate_in_order(default_pool(stream->device), bytes, stream);
  });
}

cudaError_t cudaMallocFromPoolAsync(void** memory, size_t bytes, cudaMemPool_t pool, cudaStream_t handle) {
  return runtime_called("cudaMallocFromPoolAsync", [&] {
    require(memory != nullptr, cudaErrorInvalidValue);
    *memory = nullptr;
    *memory = allocate_in_order(pool_of(pool), bytes, stream_of(handle, current_device()));
  });
}

cudaError_t cudaFreeAsync(void* memory, cudaStream_t handle) {
  return runtime_called("cudaFreeAsync", [&] {
    const auto stream = stream_of(handle, current_device());
    if (memory == nullptr) return;
    const Place where = place(memory);
    require(where.kind == Kind::device && where.begin == memory && where.pool != nullptr, cudaErrorInvalidValue);
    if (freed_in_capture(*stream, memory))
      return static_cast<void>(
          enqueue(stream, [=, bytes = where.left] { std::memset(memory, poison_of_freed, bytes); }));
    const std::size_t bytes = forget(memory);
    enqueue(stream, [=, pool = where.pool] {
      std::memset(memory, poison_of_freed, bytes);
      release(memory, bytes);
      pool->used -= bytes;
    });
  });
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  return runtime_called("cudaMemPoolCreate", [&] {
    require(pool != nullptr && properties != nullptr, cudaErrorInvalidValue);
    require(properties->allocType == cudaMemAllocationTypePinned, cudaErrorInvalidValue);
    require(properties->location.type == cudaMemLocationTypeDevice, cudaErrorInvalidValue);
    check_device(properties->location.id);
    auto made = std::make_unique<Pool>();
    made->device = properties->location.id;
    *pool = reinterpret_cast<cudaMemPool_t>(made.release());  // allocations may outlive what their owner does with it
  });
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  return runtime_called("cudaMemPoolDestroy", [&] { pool_of(pool).destroyed = true; });
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return runtime_called("cudaMemPoolSetAttribute", [&] {
    require(value != nullptr && attribute == cudaMemPoolAttrReleaseThreshold, cudaErrorInvalidValue);
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, value, sizeof bytes);
    pool_of(pool).threshold = bytes;
  });
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t handle, cudaMemPoolAttr attribute, void* value) {
  return runtime_called("cudaMemPoolGetAttribute", [&] {
    require(value != nullptr && attribute == cudaMemPoolAttrReservedMemCurrent, cudaErrorInvalidValue);
    const Pool& pool = pool_of(handle);
    // Memory above the threshold is released when the host synchronizes, as the caller has done.
    const std::uint64_t kept = std::min<std::uint64_t>(pool.reserved, pool.threshold);
    const std::uint64_t bytes = std::max<std::uint64_t>(pool.used, kept);
    std::memcpy(value, &bytes, sizeof bytes);
  });
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t handle, size_t bytes) {
  return runtime_called("cudaMemPoolTrimTo", [&] {
    Pool& pool = pool_of(handle);
    pool.reserved = std::max<std::uint64_t>(pool.used, std::min<std::uint64_t>(pool.reserved, bytes));
  });
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t handle, const cudaMemAccessDesc* access, size_t count) {
  return runtime_called("cudaMemPoolSetAccess", [&] {
    Pool& pool = pool_of(handle);
    for (std::size_t i = 0; i < count; ++i) {
      require(access[i].location.type == cudaMemLocationTypeDevice, cudaErrorInvalidValue);
      check_device(access[i].location.id);
      require(access[i].flags == cudaMemAccessFlagsProtReadWrite && access[i].location.id != pool.device,
              cudaErrorInvalidValue);
      pool.reached_by |= std::uint64_t{1} << access[i].location.id;
    }
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
