// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "distx/core/error.hpp"
#include "distx/core/span.hpp"
#include "distx/core/unique_handle.hpp"

namespace distx::inline DISTX_ABI {

/// The alignment of buffers and shards in bytes: one cache line.
inline constexpr std::size_t alignment_bytes = 64;

/// The type of `uninitialized`.
struct Uninitialized {};
/// Asks for a buffer whose elements are not set, because they are written before they are read.
inline constexpr Uninitialized uninitialized{};

/// Owns `size()` elements of memory of one space, aligned to 64 bytes. Move-only; constness does not extend to
/// elements.
template <class T, MemorySpace Space = Host>
class Buffer;

namespace detail {

struct host_memory {
  using handle_type = void*;
  static handle_type null() noexcept { return nullptr; }
  static void close(handle_type memory) noexcept { ::operator delete(static_cast<void**>(memory)[-1]); }
  /// Returns aligned memory, or null. Aligned here, because C libraries do not cache blocks of an aligned `new`, which
  /// would take half of the time of an operation on few elements.
  static handle_type allocate(std::size_t bytes) noexcept {
    void* const block = ::operator new(bytes + alignment_bytes, std::nothrow);
    if (block == nullptr) return nullptr;
    const std::size_t before = alignment_bytes - reinterpret_cast<std::uintptr_t>(block) % alignment_bytes;
    void** const memory = static_cast<void**>(block) + before / sizeof(void*);
    memory[-1] = block;
    return memory;
  }
};

}  // namespace detail

/// A buffer in host memory.
template <class T>
class Buffer<T, Host> {
  static_assert(std::is_trivially_copyable_v<T>,
                "distx::Buffer: the element type must be trivially copyable, because elements are copied as bytes");

 public:
  Buffer() noexcept = default;
  /// Allocates `size` zeros.
  /// @throws MemoryError stating the requested size
  explicit Buffer(std::size_t size) : Buffer(size, true) {}
  /// Allocates `size` elements that are not set.
  /// @throws MemoryError stating the requested size
  Buffer(std::size_t size, Uninitialized) : Buffer(size, false) {}
  Buffer(Buffer&& other) noexcept : memory_(std::move(other.memory_)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    memory_ = std::move(other.memory_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  [[nodiscard]] T* data() const noexcept { return static_cast<T*>(memory_.native_handle()); }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// Returns all elements; the buffer keeps owning them.
  [[nodiscard]] Span<T, Host> span() const noexcept { return {data(), size_}; }
  operator Span<T, Host>() const noexcept { return span(); }        // NOLINT
  operator Span<const T, Host>() const noexcept { return span(); }  // NOLINT
  T& operator[](std::size_t index) const noexcept { return data()[index]; }
  T* begin() const noexcept { return data(); }
  T* end() const noexcept { return data() + size_; }

 private:
  Buffer(std::size_t size, bool zeros) {
    if (size == 0) return;
    void* memory = size > std::numeric_limits<std::ptrdiff_t>::max() / sizeof(T)
                       ? nullptr
                       : detail::host_memory::allocate(size * sizeof(T));
    if (memory == nullptr)
      throw MemoryError("cannot allocate host memory for " + std::to_string(size) + " elements of " +
                        std::to_string(sizeof(T)) + " bytes");
    memory_ = unique_handle<detail::host_memory>::from_native_handle(memory);
    size_ = size;
    if (zeros) std::uninitialized_value_construct_n(data(), size);
  }

  unique_handle<detail::host_memory> memory_;
  std::size_t size_ = 0;
};

namespace detail {

/// Host memory for asynchronous copies from and to memory of a space.
template <class T, MemorySpace Space>
struct staging_buffer {
  using type = Buffer<T, Host>;
};
template <class T, MemorySpace Space>
using StagingBuffer = typename staging_buffer<T, Space>::type;

/// Whether work on a space's streams accesses staging buffers in place, as GPUs do page-locked memory.
template <MemorySpace Space>
inline constexpr bool reaches_staging = !std::same_as<StagingBuffer<std::byte, Space>, Buffer<std::byte, Host>>;

}  // namespace detail

}  // namespace distx::inline DISTX_ABI
