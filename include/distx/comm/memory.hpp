// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <exception>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "distx/core/error.hpp"
#include "distx/core/span.hpp"
#include "distx/memory/buffer.hpp"

namespace distx::inline DISTX_ABI {

/// Memory that one communicator transfers fastest: returned by its `allocate<T>(n)`, zeroed, or by its
/// `adopt(memory)`, for memory of the caller. Move-only.
///
/// Owns the elements, unless they are adopted, and the part of the communicator's state that they need, so it may
/// outlive the communicator. The destructor is local; on GPUs it waits for the work enqueued there. On GPUs, if one
/// rank passes such memory to a call, all ranks must.
template <class T, MemorySpace Space = Host>
class CommunicatorMemory {
 public:
  CommunicatorMemory() noexcept = default;
  CommunicatorMemory(Span<T, Space> elements, std::shared_ptr<void> owner) noexcept
      : elements_(elements), owner_(std::move(owner)) {}
  CommunicatorMemory(CommunicatorMemory&& other) noexcept
      : elements_(std::exchange(other.elements_, {})), owner_(std::move(other.owner_)) {}
  CommunicatorMemory& operator=(CommunicatorMemory&& other) noexcept {
    elements_ = std::exchange(other.elements_, {});
    owner_ = std::move(other.owner_);
    return *this;
  }

  [[nodiscard]] Span<T, Space> span() const noexcept { return elements_; }
  [[nodiscard]] T* data() const noexcept { return elements_.data(); }
  [[nodiscard]] std::size_t size() const noexcept { return elements_.size(); }
  operator Span<T, Space>() const noexcept { return elements_; }        // NOLINT
  operator Span<const T, Space>() const noexcept { return elements_; }  // NOLINT
  T* begin() const noexcept
    requires HostAccessible<Space>
  {
    return elements_.begin();
  }
  T* end() const noexcept
    requires HostAccessible<Space>
  {
    return elements_.end();
  }
  T& operator[](std::size_t index) const noexcept
    requires HostAccessible<Space>
  {
    return elements_[index];
  }

  /// Returns the same memory as `size` elements of type T. @pre `bytes` holds at least `size` elements, suitably
  /// aligned
  [[nodiscard]] static CommunicatorMemory from_bytes(CommunicatorMemory<std::byte, Space> bytes, std::size_t size) {
    return {Span<T, Space>(reinterpret_cast<T*>(bytes.data()), size), std::move(bytes.owner_)};
  }
  /// Allocates ordinary zeroed host memory, for backends that transfer it as fast as any other.
  [[nodiscard]] static CommunicatorMemory plain(std::size_t size)
    requires std::same_as<Space, Host>
  {
    auto buffer = std::make_shared<Buffer<T, Host>>(size);
    return {buffer->span(), buffer};
  }

 private:
  template <class, MemorySpace>
  friend class CommunicatorMemory;

  Span<T, Space> elements_;
  std::shared_ptr<void> owner_;
};

namespace detail {

/// Returns the bytes of `count` elements. @throws MemoryError if they exceed the address space
[[nodiscard]] inline std::size_t allocation_bytes(std::size_t count, std::size_t element_bytes,
                                                  const ErrorContext& context) {
  if (count <= std::numeric_limits<std::size_t>::max() / element_bytes) return count * element_bytes;
  throw MemoryError(
      "cannot allocate " + std::to_string(count) + " elements of " + std::to_string(element_bytes) + " bytes", context);
}

/// A part of some memory, in bytes.
struct ByteRange {
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

/// The result of a backend's `adopt`, on every rank alike.
template <MemorySpace Space>
struct Adoption {
  CommunicatorMemory<std::byte, Space> memory{};
  /// If it is set, a rank has refused: every rank's memory is as before, and the communicator remains usable.
  std::exception_ptr refusal{};
};

/// Memory that several ranks read in place, zeroed.
///
/// If `allocate_common` made it, all ranks of the communicator read it, and each writes its ranges only. Pages without
/// an element of this rank are mapped read-only where ranks are processes. If `allocate_for_host` made it, the ranks of
/// one host share it, and each may write to it. Calls of the communicator order the ranks' accesses. The memory exists
/// until the last rank releases `owner`, also if other ranks have failed.
template <MemorySpace Space>
struct CommonMemory {
  Span<std::byte, Space> span{};  ///< all of it
  std::shared_ptr<void> owner{};
  Span<std::byte, Space> part{};  ///< if `allocate_for_host` made it: the equal part that this rank's statistics count
};

}  // namespace detail

}  // namespace distx::inline DISTX_ABI
