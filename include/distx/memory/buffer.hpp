// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstddef>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "distx/core/error.hpp"
#include "distx/core/span.hpp"
#include "distx/core/unique_handle.hpp"

namespace distx {

/// Buffers, shards and slices start on boundaries of this many bytes: one cache line.
inline constexpr std::size_t alignment_bytes = 64;

/// Asks for memory whose elements are not set: for what is written before it is read.
struct Uninitialized {};
inline constexpr Uninitialized uninitialized{};

/// Owns `size()` elements of memory of one space; move-only, aligned to 64 bytes.
template <class T, MemorySpace Space = Host>
class Buffer;

namespace detail {

struct host_memory {
  using handle_type = void*;
  static handle_type null() noexcept { return nullptr; }
  static void close(handle_type memory) noexcept { ::operator delete(memory, std::align_val_t{alignment_bytes}); }
};

}  // namespace detail

template <class T>
class Buffer<T, Host> {
  static_assert(std::is_trivially_copyable_v<T>,
                "distx::Buffer: elements are moved as bytes, so they must be trivially copyable");

 public:
  Buffer() noexcept = default;
  /// Zeros, so that what is never written is at least the same on every rank.
  /// @throws MemoryError that says how much was asked for
  explicit Buffer(std::size_t size) : Buffer(size, true) {}
  /// Elements that are not set.
  Buffer(std::size_t size, Uninitialized) : Buffer(size, false) {}
  Buffer(Buffer&& other) noexcept : memory_(std::move(other.memory_)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    memory_ = std::move(other.memory_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  [[nodiscard]] T* data() const noexcept { return static_cast<T*>(memory_.native_handle()); }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
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
                       : ::operator new(size * sizeof(T), std::align_val_t{alignment_bytes}, std::nothrow);
    if (memory == nullptr)
      throw MemoryError("no host memory for " + std::to_string(size) + " elements of " + std::to_string(sizeof(T)) +
                        " bytes");
    memory_ = unique_handle<detail::host_memory>::from_native_handle(memory);
    size_ = size;
    if (zeros) std::uninitialized_value_construct_n(data(), size);
  }

  unique_handle<detail::host_memory> memory_;
  std::size_t size_ = 0;
};

}  // namespace distx
