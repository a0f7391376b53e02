// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/detail/in_order.hpp"
#include "distx/memory/operations.hpp"
#include "distx/tensor/detail/tensor_place.hpp"
#include "distx/tensor/tensor_ref.hpp"

namespace distx {

/// A borrowed tensor that is spread over a mesh: `DistTensor` with memory of somebody else.
template <class T, std::size_t Rank, MeshType MeshT, class L, MemorySpace Space = Host>
class DistTensorRef : public TensorPlace<Rank, MeshT, L> {
 public:
  using element_type = T;
  using value_type = std::remove_cv_t<T>;
  using space = Space;
  using place_type = TensorPlace<Rank, MeshT, L>;

  /// `values` is this rank's part, row by row.
  /// @throws MismatchError where it has another number of elements
  DistTensorRef(MeshT mesh, const Extents<Rank>& extents, Span<T, Space> values)
      : DistTensorRef(place_type(std::move(mesh), extents), values) {}
  DistTensorRef(place_type place, Span<T, Space> values) : place_type(std::move(place)), data_(values.data()) {
    if (values.size() != this->box().volume())
      throw MismatchError("there are " + std::to_string(values.size()) + " values, and this rank's part of " +
                              words_of(this->extents()) + " is " + words_of(this->local_extents()),
                          {.operation = "DistTensor", .rank = this->mesh().rank(), .size = this->mesh().size()});
  }
  template <class U>
    requires std::same_as<const U, T>
  DistTensorRef(const DistTensorRef<U, Rank, MeshT, L, Space>& other)  // NOLINT
      : place_type(other), data_(other.local().data()) {}

  /// This rank's part, row by row.
  [[nodiscard]] Span<T, Space> local() const noexcept { return {data_, this->box().volume()}; }
  /// The same, indexed: `x.view()(i, j)`.
  [[nodiscard]] TensorRef<T, Rank, Space> view() const noexcept { return {local(), this->local_extents()}; }

 private:
  T* data_;
};

/// A tensor of `Rank` dimensions that is spread over a mesh as its layout says; owns this rank's part, row by row.
///
/// Move-only; `clone()` copies. Its type says what operations may do with it, and what must be communicated first.
template <class T, std::size_t Rank, MeshType MeshT, class L, MemorySpace Space = Host>
class DistTensor : public TensorPlace<Rank, MeshT, L> {
  static_assert(Transferable<T> && !std::is_const_v<T>, "distx: the elements of a tensor must be trivially copyable");

 public:
  using element_type = T;
  using value_type = T;
  using space = Space;
  using place_type = TensorPlace<Rank, MeshT, L>;
  using ref_type = DistTensorRef<T, Rank, MeshT, L, Space>;
  using const_ref_type = DistTensorRef<const T, Rank, MeshT, L, Space>;

  /// Zeros.
  DistTensor(MeshT mesh, const Extents<Rank>& extents) : DistTensor(place_type(std::move(mesh), extents)) {}
  explicit DistTensor(place_type place)
      : place_type(std::move(place)), values_(detail::buffer_on<T, Space>(stream(), this->box().volume())) {}
  /// Elements that are not set.
  DistTensor(place_type place, Uninitialized)
      : place_type(std::move(place)),
        values_(detail::buffer_on<T, Space>(stream(), this->box().volume(), uninitialized)) {}
  /// Takes this rank's part.
  /// @throws MismatchError where it has another number of elements
  DistTensor(place_type place, Buffer<T, Space> values)
      : place_type(ref_type(std::move(place), values.span())), values_(std::move(values)) {}

  // Of a temporary none of these, which would outlive it.
  [[nodiscard]] Span<T, Space> local() & noexcept { return values_.span(); }
  [[nodiscard]] Span<const T, Space> local() const& noexcept { return values_.span(); }
  void local() const&& = delete;
  /// The same, indexed: `x.view()(i, j)`.
  [[nodiscard]] TensorRef<T, Rank, Space> view() & noexcept { return {local(), this->local_extents()}; }
  [[nodiscard]] TensorRef<const T, Rank, Space> view() const& noexcept { return {local(), this->local_extents()}; }
  void view() const&& = delete;
  [[nodiscard]] ref_type ref() & noexcept { return {*this, local()}; }
  [[nodiscard]] const_ref_type ref() const& noexcept { return {*this, local()}; }
  void ref() const&& = delete;
  operator const_ref_type() const noexcept { return ref(); }  // NOLINT

  [[nodiscard]] DistTensor clone() const {
    DistTensor same(static_cast<const place_type&>(*this), uninitialized);
    copy(stream(), same.local(), local());
    return same;
  }
  /// In whose order the memory is used: the mesh's.
  [[nodiscard]] typename Space::stream stream() const noexcept { return this->mesh().template stream<Space>(); }
  /// Gives up the memory; the tensor may then only be assigned to or destroyed.
  [[nodiscard]] Buffer<T, Space> release() noexcept { return std::move(values_); }

 private:
  Buffer<T, Space> values_;
};

/// What the functions on tensors take: `DistTensor`, `DistTensorRef`, and a user's own type that has as much.
template <class X>
concept DistributedTensor = requires(const std::remove_cvref_t<X>& x) {
  typename std::remove_cvref_t<X>::value_type;
  typename std::remove_cvref_t<X>::space;
  typename std::remove_cvref_t<X>::layout_type;
  requires MeshType<typename std::remove_cvref_t<X>::mesh_type>;
  requires detail::is_layout<typename std::remove_cvref_t<X>::layout_type>;
  requires std::same_as<std::remove_cvref_t<decltype(x.extents())>, Extents<std::remove_cvref_t<X>::rank()>>;
  { x.mesh() } -> std::convertible_to<const typename std::remove_cvref_t<X>::mesh_type&>;
  {
    x.local()
  } -> std::convertible_to<
        Span<const typename std::remove_cvref_t<X>::value_type, typename std::remove_cvref_t<X>::space>>;
};

namespace detail {

/// In whose order a tensor is worked on.
template <DistributedTensor X>
auto stream_of(const X& x) {
  return x.mesh().template stream<typename X::space>();
}

}  // namespace detail

/// @name Of a distributed tensor's type
/// @{
template <DistributedTensor X>
using value_of = typename std::remove_cvref_t<X>::value_type;
template <DistributedTensor X>
using mesh_of = typename std::remove_cvref_t<X>::mesh_type;
template <DistributedTensor X>
using layout_of = typename std::remove_cvref_t<X>::layout_type;
template <DistributedTensor X>
inline constexpr std::size_t rank_of = std::remove_cvref_t<X>::rank();
/// The tensor that owns its memory and has another layout than `X`, alike in all else.
template <DistributedTensor X, class L>
using relaid = DistTensor<value_of<X>, rank_of<X>, mesh_of<X>, L, typename std::remove_cvref_t<X>::space>;
/// @}

}  // namespace distx
