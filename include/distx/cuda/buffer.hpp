// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/cuda/detail/captured_work.hpp"
#include "distx/cuda/detail/pool.hpp"
#include "distx/cuda/space.hpp"
#include "distx/memory/buffer.hpp"
#include "distx/memory/detail/current_device.hpp"

namespace distx::inline DISTX_ABI {

namespace cuda::detail {

/// Whether an allocation failed for lack of memory. distx's arguments are valid, but drivers answer too large requests
/// of page-locked memory with "invalid argument" or "already mapped".
[[nodiscard]] constexpr bool means_no_memory(cudaError_t code) noexcept {
  return code == cudaErrorMemoryAllocation || code == cudaErrorInvalidValue || code == cudaErrorAlreadyMapped;
}

/// Allocates; after a failure, once more with reclaimed memory.
/// @throws MemoryError with the requested size
template <class T, class Allocate>
void* allocated(std::size_t size, const char* kind, Allocate&& allocate) {
  void* memory = nullptr;
  const bool fits = size <= std::numeric_limits<std::ptrdiff_t>::max() / sizeof(T);
  cudaError_t code = fits ? allocate(&memory, size * sizeof(T)) : cudaErrorMemoryAllocation;
  if (means_no_memory(code) && fits) {
    reclaim_memory();
    code = allocate(&memory, size * sizeof(T));
  }
  if (code == cudaSuccess) return memory;
  if (!means_no_memory(code)) fail(code, "an allocation");
  static_cast<void>(cudaGetLastError());
  throw MemoryError("no " + std::string(kind) + " memory for " + std::to_string(size) + " elements of " +
                        std::to_string(sizeof(T)) + " bytes: " + to_string(code),
                    {}, static_cast<int>(code));
}

}  // namespace cuda::detail

namespace cuda {

/// Returns to the system the current GPU's memory that stream-ordered buffers have deallocated, as far as the host has
/// synchronized with their streams: for other programs, and for libraries that allocate memory themselves.
inline void release_unused_memory() { detail::Pools::all().trim(current_device()); }

}  // namespace cuda

/// Owns memory of the GPU that is current when it is constructed.
///
/// Without a stream, allocation and deallocation may block until the GPU is idle. With a stream, both are enqueued on
/// it: work on other streams must be ordered after the allocation and before the destruction, and the stream must
/// outlive the buffer. A pool keeps deallocated memory for other buffers; see `release_unused_memory`.
template <class T>
class Buffer<T, Cuda> {
  static_assert(std::is_trivially_copyable_v<T>,
                "distx::Buffer: elements are moved as bytes, so they must be trivially copyable");

 public:
  Buffer() noexcept = default;
  /// Allocates `size` elements and sets them to zero before it returns.
  /// @throws MemoryError with the requested size
  explicit Buffer(std::size_t size) : Buffer(size, uninitialized) {
    if (size == 0) return;
    cuda::detail::check(cudaMemsetAsync(data(), 0, size * sizeof(T), nullptr), "cudaMemsetAsync");
    CudaStreamRef().synchronize();  // non-blocking streams do not wait for the legacy default stream
  }
  /// Allocates `size` uninitialized elements.
  /// @throws MemoryError with the requested size
  Buffer(std::size_t size, Uninitialized) : size_(size) {
    if (size == 0) return;
    memory_ = cuda::detail::unique_device_memory::from_native_handle({cuda::detail::allocated<T>(
        size, "GPU", [](void** memory, std::size_t bytes) { return cudaMalloc(memory, bytes); })});
  }
  /// Enqueues the allocation of `size` uninitialized elements.
  /// @throws MemoryError with the requested size
  Buffer(std::size_t size, Uninitialized, CudaStreamRef stream) : size_(size) {
    if (size == 0) return;
    const int device = cuda::current_device();
    const cudaMemPool_t pool = cuda::detail::Pools::all().of(device);
    void* const memory = cuda::detail::allocated<T>(size, "GPU", [&](void** at, std::size_t bytes) {
      return cudaMallocFromPoolAsync(at, bytes, pool, stream.native_handle());
    });
    memory_ = cuda::detail::unique_device_memory::from_native_handle({memory, stream.native_handle(), true, device});
  }
  /// Enqueues the allocation of `size` elements and their setting to zero.
  /// @throws MemoryError with the requested size
  Buffer(std::size_t size, CudaStreamRef stream) : Buffer(size, uninitialized, stream) {
    if (size != 0)
      cuda::detail::check(cudaMemsetAsync(data(), 0, size * sizeof(T), stream.native_handle()), "cudaMemsetAsync");
  }
  Buffer(Buffer&& other) noexcept : memory_(std::move(other.memory_)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    memory_ = std::move(other.memory_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  [[nodiscard]] T* data() const noexcept { return static_cast<T*>(memory_.native_handle().address); }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] Span<T, Cuda> span() const noexcept { return {data(), size_}; }
  operator Span<T, Cuda>() const noexcept { return span(); }        // NOLINT
  operator Span<const T, Cuda>() const noexcept { return span(); }  // NOLINT

 private:
  cuda::detail::unique_device_memory memory_;
  std::size_t size_ = 0;
};

namespace cuda {

/// Owns page-locked memory of the host, for asynchronous copies from and to GPUs. Initially zero; aligned to a page.
template <class T>
class PinnedBuffer {
  static_assert(std::is_trivially_copyable_v<T>,
                "distx::cuda::PinnedBuffer: elements are moved as bytes, so they must be trivially copyable");

 public:
  PinnedBuffer() noexcept = default;
  /// Allocates `size` elements and sets them to zero.
  /// @throws MemoryError with the requested size
  explicit PinnedBuffer(std::size_t size) : size_(size) {
    if (size == 0) return;
    memory_ = cuda::detail::unique_pinned::from_native_handle(cuda::detail::allocated<T>(
        size, "page-locked", [](void** memory, std::size_t bytes) { return cudaMallocHost(memory, bytes); }));
    std::uninitialized_value_construct_n(data(), size);
  }
  PinnedBuffer(PinnedBuffer&& other) noexcept
      : memory_(std::move(other.memory_)), size_(std::exchange(other.size_, 0)) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    memory_ = std::move(other.memory_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  [[nodiscard]] T* data() const noexcept { return static_cast<T*>(memory_.native_handle()); }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] Span<T> span() const noexcept { return {data(), size_}; }
  operator Span<T>() const noexcept { return span(); }        // NOLINT
  operator Span<const T>() const noexcept { return span(); }  // NOLINT
  T& operator[](std::size_t index) const noexcept { return data()[index]; }
  T* begin() const noexcept { return data(); }
  T* end() const noexcept { return data() + size_; }

 private:
  cuda::detail::unique_pinned memory_;
  std::size_t size_ = 0;
};

}  // namespace cuda

namespace detail {

template <class T>
struct staging_buffer<T, Cuda> {
  using type = cuda::PinnedBuffer<T>;
};

template <>
struct CurrentDevice<Cuda> {
  int number = cuda::current_device();
  struct Guard : cuda::DeviceGuard {
    explicit Guard(const CurrentDevice& device) : cuda::DeviceGuard(device.number) {}
  };
};

}  // namespace detail

}  // namespace distx::inline DISTX_ABI
