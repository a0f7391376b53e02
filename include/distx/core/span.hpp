// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstddef>
#include <span>
#include <type_traits>

#include "distx/core/element.hpp"
#include "distx/core/space.hpp"

namespace distx::inline DISTX_ABI {

/// A non-owning view of contiguous elements in one memory space: a std::span that carries the space in its type.
///
/// Converts from contiguous ranges of host memory only, so that a std::vector cannot be passed to a GPU collective.
/// Element access is available in host-accessible spaces.
template <class T, MemorySpace Space = Host>
class Span {
 public:
  using element_type = T;
  using value_type = std::remove_cv_t<T>;
  using space = Space;

  constexpr Span() noexcept = default;
  constexpr Span(T* data, std::size_t size) noexcept : data_(data), size_(size) {}

  template <class U>
    requires std::same_as<const U, T>
  constexpr Span(Span<U, Space> other) noexcept : data_(other.data()), size_(other.size()) {}  // NOLINT

  template <class Range>
    requires std::same_as<Space, Host> &&
             (!requires { typename std::remove_cvref_t<Range>::space; }) && std::constructible_from<std::span<T>, Range>
  constexpr Span(Range&& range) noexcept  // NOLINT
      : Span(std::span<T>(range).data(), std::span<T>(range).size()) {}

  [[nodiscard]] constexpr T* data() const noexcept { return data_; }
  [[nodiscard]] constexpr std::size_t size() const noexcept { return size_; }
  [[nodiscard]] constexpr std::size_t size_bytes() const noexcept { return size_ * sizeof(T); }
  [[nodiscard]] constexpr bool empty() const noexcept { return size_ == 0; }

  /// Returns `count` elements from `offset`.
  /// @pre offset + count <= size()
  [[nodiscard]] constexpr Span subspan(std::size_t offset, std::size_t count) const noexcept {
    return {data_ + offset, count};
  }
  /// Returns the elements from `offset` on.
  /// @pre offset <= size()
  [[nodiscard]] constexpr Span subspan(std::size_t offset) const noexcept { return subspan(offset, size_ - offset); }
  /// Returns the first `count` elements.
  /// @pre count <= size()
  [[nodiscard]] constexpr Span first(std::size_t count) const noexcept { return {data_, count}; }

  constexpr T* begin() const noexcept
    requires HostAccessible<Space>
  {
    return data_;
  }
  constexpr T* end() const noexcept
    requires HostAccessible<Space>
  {
    return data_ + size_;
  }
  constexpr T& operator[](std::size_t index) const noexcept
    requires HostAccessible<Space>
  {
    return data_[index];
  }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace distx::inline DISTX_ABI

// A Span may end before its elements do, so one that a function returns converts to a std::span.
/// @cond
namespace std::ranges {

template <class T, distx::MemorySpace Space>
inline constexpr bool enable_borrowed_range<distx::Span<T, Space>> = true;
template <class T, distx::MemorySpace Space>
inline constexpr bool enable_view<distx::Span<T, Space>> = true;

}  // namespace std::ranges
/// @endcond

namespace distx::inline DISTX_ABI {

/// Stands in for an element type that is known at run time only.
struct AnyElement {};

/// A span of elements whose type is known at run time only; erased collectives carry it. Converts from a typed span.
template <class Any, MemorySpace Space>
  requires std::same_as<std::remove_const_t<Any>, AnyElement>
class Span<Any, Space> {
  template <class T>
  using as_const_as_any = std::conditional_t<std::is_const_v<Any>, const T, T>;

 public:
  using element_type = Any;
  using value_type = AnyElement;
  using space = Space;

  constexpr Span() noexcept = default;
  constexpr Span(as_const_as_any<void>* data, std::size_t size, ElementType type, std::size_t element_bytes) noexcept
      : data_(data), size_(size), element_bytes_(element_bytes), type_(type) {}

  template <class T>
    requires(!std::same_as<std::remove_const_t<T>, AnyElement>) && std::convertible_to<T*, as_const_as_any<void>*>
  constexpr Span(Span<T, Space> typed) noexcept  // NOLINT
      : Span(typed.data(), typed.size(), distx::element_type<T>, sizeof(T)) {}

  template <class Other>
    requires std::same_as<const Other, Any>
  constexpr Span(Span<Other, Space> other) noexcept  // NOLINT
      : Span(other.data(), other.size(), other.type(), other.element_bytes()) {}

  [[nodiscard]] constexpr as_const_as_any<void>* data() const noexcept { return data_; }
  [[nodiscard]] auto* bytes() const noexcept { return static_cast<as_const_as_any<std::byte>*>(data_); }
  /// Returns the number of elements, not of bytes.
  [[nodiscard]] constexpr std::size_t size() const noexcept { return size_; }
  [[nodiscard]] constexpr std::size_t size_bytes() const noexcept { return size_ * element_bytes_; }
  [[nodiscard]] constexpr bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] constexpr ElementType type() const noexcept { return type_; }
  [[nodiscard]] constexpr std::size_t element_bytes() const noexcept { return element_bytes_; }

  /// Returns `count` elements from `offset`.
  /// @pre offset + count <= size()
  [[nodiscard]] Span subspan(std::size_t offset, std::size_t count) const noexcept {
    return {bytes() + offset * element_bytes_, count, type_, element_bytes_};
  }

 private:
  as_const_as_any<void>* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t element_bytes_ = 1;
  ElementType type_ = ElementType::bytes;
};

}  // namespace distx::inline DISTX_ABI
