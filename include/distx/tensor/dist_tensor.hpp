// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/detail/in_order.hpp"
#include "distx/memory/operations.hpp"
#include "distx/tensor/dist_tensor_spec.hpp"
#include "distx/tensor/tensor_ref.hpp"

namespace distx::inline DISTX_ABI {

/// A distributed tensor over borrowed memory; `DistTensor` owns its memory.
///
/// Borrows this rank's part; the memory must outlive it. Copyable.
template <class T, std::size_t Rank, detail::MeshType MeshT, class L, MemorySpace Space = Host>
class DistTensorRef : public DistTensorSpec<Rank, MeshT, L> {
 public:
  using element_type = T;
  using value_type = std::remove_cv_t<T>;
  using space = Space;
  using spec_type = DistTensorSpec<Rank, MeshT, L>;

  /// Refers to `values`, this rank's part in row-major order.
  /// @throws InvalidArgument if `values` does not have the number of elements that the layout assigns to this rank
  DistTensorRef(MeshT mesh, const Extents<Rank>& extents, Span<T, Space> values)
      : DistTensorRef(spec_type(std::move(mesh), extents), values) {}
  DistTensorRef(spec_type spec, Span<T, Space> values) : spec_type(std::move(spec)), data_(values.data()) {
    if (values.size() != this->local_volume())
      throw InvalidArgument("got " + std::to_string(values.size()) + " values, this rank's part of " +
                                detail::to_string(this->extents()) + " is " + detail::to_string(this->local_extents()) +
                                " and has " + std::to_string(this->local_volume()),
                            {.operation = "DistTensor", .rank = this->mesh().rank(), .size = this->mesh().size()});
  }
  template <class U>
    requires std::same_as<const U, T>
  DistTensorRef(const DistTensorRef<U, Rank, MeshT, L, Space>& other)  // NOLINT
      : spec_type(other), data_(other.local().data()) {}

  /// Returns this rank's part, in row-major order.
  [[nodiscard]] Span<T, Space> local() const noexcept { return {data_, this->local_volume()}; }
  /// Returns this rank's part as a tensor, to be indexed as `x.view()(i, j)`.
  [[nodiscard]] TensorRef<T, Rank, Space> view() const noexcept { return {local(), this->local_extents()}; }

 private:
  T* data_;
};

/// A tensor of `Rank` dimensions that is distributed over a mesh by layout `L`; owns this rank's part, in row-major
/// order.
///
/// Move-only; `clone()` copies. The layout in its type determines which operations compile without communication. `T`
/// is trivially copyable. Construction is local: no constructor communicates.
template <class T, std::size_t Rank, detail::MeshType MeshT, class L, MemorySpace Space = Host>
class DistTensor : public DistTensorSpec<Rank, MeshT, L> {
  static_assert(Transferable<T> && !std::is_const_v<T>, "distx: the elements of a tensor must be trivially copyable");

 public:
  using element_type = T;
  using value_type = T;
  using space = Space;
  using spec_type = DistTensorSpec<Rank, MeshT, L>;
  using ref_type = DistTensorRef<T, Rank, MeshT, L, Space>;
  using const_ref_type = DistTensorRef<const T, Rank, MeshT, L, Space>;

  /// Allocates this rank's part and sets it to zero.
  /// @throws MemoryError if the allocation fails
  DistTensor(MeshT mesh, const Extents<Rank>& extents) : DistTensor(spec_type(std::move(mesh), extents)) {}
  explicit DistTensor(spec_type spec)
      : spec_type(std::move(spec)), values_(detail::buffer_on<T, Space>(stream(), this->local_volume())) {}
  /// Allocates this rank's part and leaves its elements unset.
  DistTensor(spec_type spec, Uninitialized)
      : spec_type(std::move(spec)),
        values_(detail::buffer_on<T, Space>(stream(), this->local_volume(), uninitialized)) {}
  /// Takes ownership of `values`, this rank's part in row-major order.
  /// @throws InvalidArgument if `values` does not have the number of elements that the layout assigns to this rank
  DistTensor(spec_type spec, Buffer<T, Space> values)
      : spec_type(ref_type(std::move(spec), values.span())), values_(std::move(values)) {}

  // Deleted for temporaries, which the result would outlive.
  /// Returns this rank's part, in row-major order.
  [[nodiscard]] Span<T, Space> local() & noexcept { return values_.span(); }
  [[nodiscard]] Span<const T, Space> local() const& noexcept { return values_.span(); }
  void local() const&& = delete;
  /// Returns this rank's part as a tensor, to be indexed as `x.view()(i, j)`.
  [[nodiscard]] TensorRef<T, Rank, Space> view() & noexcept { return {local(), this->local_extents()}; }
  [[nodiscard]] TensorRef<const T, Rank, Space> view() const& noexcept { return {local(), this->local_extents()}; }
  void view() const&& = delete;
  /// Returns a reference to the tensor, which borrows its memory.
  [[nodiscard]] ref_type ref() & noexcept { return {*this, local()}; }
  [[nodiscard]] const_ref_type ref() const& noexcept { return {*this, local()}; }
  void ref() const&& = delete;
  operator const_ref_type() const noexcept { return ref(); }  // NOLINT

  /// Returns a copy, made in the order of the mesh's stream. Local.
  [[nodiscard]] DistTensor clone() const {
    DistTensor same(static_cast<const spec_type&>(*this), uninitialized);
    copy(stream(), same.local(), local());
    return same;
  }
  /// Returns the stream that orders the use of the memory: the mesh's.
  [[nodiscard]] typename Space::stream stream() const noexcept { return this->mesh().template stream<Space>(); }
  /// Returns the memory and gives up its ownership; afterwards the tensor may only be assigned to or destroyed.
  [[nodiscard]] Buffer<T, Space> release() noexcept { return std::move(values_); }

 private:
  Buffer<T, Space> values_;
};

/// A type that the functions on distributed tensors take: `DistTensor`, `DistTensorRef`, `TensorParameter`, or a user's
/// type with the same `mesh_type`, `layout_type`, `value_type`, `space`, `mesh()`, `extents()`, `rank()` and `local()`.
template <class X>
concept DistributedTensor = requires(const std::remove_cvref_t<X>& x) {
  typename std::remove_cvref_t<X>::value_type;
  typename std::remove_cvref_t<X>::space;
  typename std::remove_cvref_t<X>::layout_type;
  requires detail::MeshType<typename std::remove_cvref_t<X>::mesh_type>;
  requires detail::is_layout<typename std::remove_cvref_t<X>::layout_type>;
  requires std::same_as<std::remove_cvref_t<decltype(x.extents())>, Extents<std::remove_cvref_t<X>::rank()>>;
  { x.mesh() } -> std::convertible_to<const typename std::remove_cvref_t<X>::mesh_type&>;
  {
    x.local()
  } -> std::convertible_to<
        Span<const typename std::remove_cvref_t<X>::value_type, typename std::remove_cvref_t<X>::space>>;
};

namespace detail {

template <class... Xs>
concept DistributedTensors = (DistributedTensor<Xs> && ...);

template <DistributedTensor X>
using value_of = typename std::remove_cvref_t<X>::value_type;
template <DistributedTensor X>
using mesh_of = typename std::remove_cvref_t<X>::mesh_type;
template <DistributedTensor X>
using layout_of = typename std::remove_cvref_t<X>::layout_type;
template <DistributedTensor X>
inline constexpr std::size_t rank_of = std::remove_cvref_t<X>::rank();
/// The owning tensor type that differs from `X` only in its layout.
template <DistributedTensor X, class L>
using relaid = DistTensor<value_of<X>, rank_of<X>, mesh_of<X>, L, typename std::remove_cvref_t<X>::space>;

/// The type of the result of a call that does not compile.
template <DistributedTensor X, std::size_t Rank = rank_of<X>>
using Placeholder =
    DistTensor<value_of<X>, Rank, mesh_of<X>, PlaceholderLayout, typename std::remove_cvref_t<X>::space>;

/// The stream that orders work on a tensor.
template <DistributedTensor X>
auto stream_of(const X& x) {
  return x.mesh().template stream<typename X::space>();
}
template <DistributedTensor X>
[[nodiscard]] Sharding sharding_of(const X& x) noexcept {
  return sharding_of<layout_of<X>, mesh_of<X>>(shape_of(x.mesh()), x.extents());
}
/// This rank's part of the tensor.
template <DistributedTensor X>
[[nodiscard]] Box box_of(const X& x) noexcept {
  if constexpr (requires { SpecAccess::box(x); })
    return SpecAccess::box(x);
  else
    return sharding_of(x).box(x.mesh().rank());
}
template <MeshType M>
[[nodiscard]] ErrorContext context_of(const M& mesh, std::string_view operation, const std::source_location& location) {
  return {.operation = operation, .rank = mesh.rank(), .size = mesh.size(), .location = location};
}

}  // namespace detail

}  // namespace distx::inline DISTX_ABI
