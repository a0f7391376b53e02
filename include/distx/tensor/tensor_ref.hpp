// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <concepts>

#include "distx/core/error.hpp"
#include "distx/memory/buffer.hpp"
#include "distx/tensor/extents.hpp"

namespace distx::inline DISTX_ABI {

/// A borrowed tensor of this process in row-major order: a span with extents, indexed as `x(i, j)`.
///
/// Copyable; the memory must outlive it. Indexing needs memory that the host can access.
template <class T, std::size_t Rank, MemorySpace Space = Host>
class TensorRef {
 public:
  using element_type = T;
  using value_type = std::remove_cv_t<T>;
  using space = Space;

  constexpr TensorRef() noexcept = default;
  /// Refers to `values` as a tensor of these extents.
  /// @throws InvalidArgument unless the number of values is the product of the extents
  constexpr TensorRef(Span<T, Space> values, const Extents<Rank>& extents) : data_(values.data()), extents_(extents) {
    if (values.size() != volume(extents))
      throw InvalidArgument("got " + std::to_string(values.size()) + " values, extents " + detail::to_string(extents) +
                                " need " + std::to_string(volume(extents)),
                            {.operation = "TensorRef"});
  }
  template <std::size_t N>
    requires(N == Rank)
  constexpr TensorRef(Span<T, Space> values, const std::size_t (&extents)[N])
      : TensorRef(values, std::to_array(extents)) {}
  template <class U>
    requires std::same_as<const U, T>
  constexpr TensorRef(TensorRef<U, Rank, Space> other) noexcept  // NOLINT
      : data_(other.data()), extents_(other.extents()) {}

  [[nodiscard]] static constexpr std::size_t rank() noexcept { return Rank; }
  [[nodiscard]] constexpr T* data() const noexcept { return data_; }
  [[nodiscard]] constexpr Span<T, Space> values() const noexcept { return {data_, volume(extents_)}; }
  [[nodiscard]] constexpr const Extents<Rank>& extents() const noexcept { return extents_; }
  [[nodiscard]] constexpr std::size_t extent(std::size_t dim) const noexcept { return extents_[dim]; }
  /// Returns the distance in elements between consecutive indices of a dimension.
  [[nodiscard]] constexpr std::size_t stride(std::size_t dim) const noexcept {
    std::size_t elements = 1;
    for (std::size_t d = dim + 1; d < Rank; ++d) elements *= extents_[d];
    return elements;
  }
  /// Returns the element at an index of each dimension. @pre each index is below its extent
  template <std::convertible_to<std::size_t>... Index>
    requires(sizeof...(Index) == Rank) && HostAccessible<Space>
  constexpr T& operator()(Index... index) const noexcept {
    std::size_t at = 0, dim = 0;
    ((at = at * extents_[dim++] + static_cast<std::size_t>(index)), ...);
    return data_[at];
  }

 private:
  T* data_ = nullptr;
  Extents<Rank> extents_{};
};

template <class Values, std::size_t Rank>
TensorRef(Values&, const std::size_t (&)[Rank])
    -> TensorRef<typename decltype(std::span(std::declval<Values&>()))::element_type, Rank>;
template <class Values, std::size_t Rank>
TensorRef(Values&,
          const Extents<Rank>&) -> TensorRef<typename decltype(std::span(std::declval<Values&>()))::element_type, Rank>;
template <class T, class Space, std::size_t Rank>
TensorRef(Span<T, Space>, const Extents<Rank>&) -> TensorRef<T, Rank, Space>;
template <class T, class Space, std::size_t Rank>
TensorRef(Span<T, Space>, const std::size_t (&)[Rank]) -> TensorRef<T, Rank, Space>;

/// An owned tensor of this process in row-major order; move-only.
template <class T, std::size_t Rank, MemorySpace Space = Host>
class Tensor {
 public:
  using value_type = T;
  using space = Space;

  Tensor() = default;
  /// Allocates a tensor of zeros.
  explicit Tensor(const Extents<Rank>& extents) : values_(volume(extents)), extents_(extents) {}
  /// Takes ownership of `values`.
  /// @throws InvalidArgument unless the number of values is the product of the extents
  Tensor(const Extents<Rank>& extents, Buffer<T, Space> values)
      : values_(std::move(values)), extents_(TensorRef<T, Rank, Space>(values_.span(), extents).extents()) {}

  [[nodiscard]] static constexpr std::size_t rank() noexcept { return Rank; }
  [[nodiscard]] const Extents<Rank>& extents() const noexcept { return extents_; }
  [[nodiscard]] std::size_t extent(std::size_t dim) const noexcept { return extents_[dim]; }
  // Deleted for temporaries, which the result would outlive.
  [[nodiscard]] Span<T, Space> values() & noexcept { return values_.span(); }
  [[nodiscard]] Span<const T, Space> values() const& noexcept { return values_.span(); }
  void values() const&& = delete;
  [[nodiscard]] TensorRef<T, Rank, Space> ref() & noexcept { return {values(), extents_}; }
  [[nodiscard]] TensorRef<const T, Rank, Space> ref() const& noexcept { return {values(), extents_}; }
  void ref() const&& = delete;
  template <std::convertible_to<std::size_t>... Index>
    requires(sizeof...(Index) == Rank) && HostAccessible<Space>
  T& operator()(Index... index) noexcept {
    return ref()(index...);
  }
  template <std::convertible_to<std::size_t>... Index>
    requires(sizeof...(Index) == Rank) && HostAccessible<Space>
  const T& operator()(Index... index) const noexcept {
    return ref()(index...);
  }

 private:
  Buffer<T, Space> values_;
  Extents<Rank> extents_{};
};

}  // namespace distx::inline DISTX_ABI
