// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/redistribute.hpp"

// The collectives on a distributed tensor along one axis of its mesh: redistributions named by what they do, which do
// not compile if the layouts make them something else.
namespace distx::inline DISTX_ABI {

namespace detail {

/// Whether the placement on an axis cannot be judged, and why is diagnosed elsewhere.
template <class X, class Axis>
inline constexpr bool is_unknown_on = is_placeholder<layout_of<X>> || !mesh_of<X>::template has_axis<Axis>;
template <class X, class Axis>
inline constexpr bool is_partial_on = is_unknown_on<X, Axis> || is_partial<placement_on<layout_of<X>, Axis>>;
template <class X, class Axis>
inline constexpr bool is_shard_on = is_unknown_on<X, Axis> || is_shard<placement_on<layout_of<X>, Axis>>;

/// The tensor with another placement on one axis; of a call that does not compile, a placeholder.
template <class P, bool Valid, class X>
auto replaced(X&& x, const std::source_location& location) {
  constexpr bool has_axis = mesh_of<X>::template has_axis<typename P::axis>;
  static_assert(has_axis, "distx: the tensor's mesh does not have the named axis");
  if constexpr (Valid && has_axis)
    return redistribute<layout_with<layout_of<X>, P>>(std::forward<X>(x), location);
  else
    return Placeholder<X>(x.mesh(), x.extents());
}

}  // namespace detail

/// @name Collectives along an axis of the mesh
/// Each is the `redistribute` that changes the placement on `Axis` only, with its order, blocking and errors.
/// Collective over the ranks along `Axis`. An rvalue is reduced in place where possible.
/// @{

/// Returns the reduction of a tensor that is Partial over `Axis`, replicated there: `all_reduce<Model>(x)`.
template <class Axis, DistributedTensor X>
[[nodiscard]] auto all_reduce(X&& x, std::source_location location = std::source_location::current()) {
  constexpr bool valid = detail::is_partial_on<X, Axis>;
  static_assert(valid, "distx: all_reduce: the tensor is not Partial over this axis");
  return detail::replaced<Replicated<Axis>, valid>(std::forward<X>(x), location);
}

/// Returns the reduction of a tensor that is Partial over `Axis`, with dimension `Dim` sharded over it:
/// `reduce_scatter<Model, 0>(x)`.
template <class Axis, std::size_t Dim, DistributedTensor X>
[[nodiscard]] auto reduce_scatter(X&& x, std::source_location location = std::source_location::current()) {
  constexpr bool valid = detail::is_partial_on<X, Axis>;
  static_assert(valid, "distx: reduce_scatter: the tensor is not Partial over this axis");
  return detail::replaced<Shard<Dim, Axis>, valid>(std::forward<X>(x), location);
}

/// Returns a tensor that is sharded over `Axis`, replicated there: `all_gather<Model>(x)`.
template <class Axis, DistributedTensor X>
[[nodiscard]] auto all_gather(X&& x, std::source_location location = std::source_location::current()) {
  constexpr bool valid = detail::is_shard_on<X, Axis>;
  static_assert(valid, "distx: all_gather: no dimension is sharded over this axis");
  return detail::replaced<Replicated<Axis>, valid>(std::forward<X>(x), location);
}

/// Returns a tensor that is sharded over `Axis`, with dimension `Dim` sharded over it instead: `all_to_all<Model,
/// 1>(x)` of a tensor with `Shard<0, Model>`.
template <class Axis, std::size_t Dim, DistributedTensor X>
[[nodiscard]] auto all_to_all(X&& x, std::source_location location = std::source_location::current()) {
  constexpr bool valid = detail::is_shard_on<X, Axis>;
  static_assert(valid, "distx: all_to_all: no dimension is sharded over this axis");
  return detail::replaced<Shard<Dim, Axis>, valid>(std::forward<X>(x), location);
}
/// @}

}  // namespace distx::inline DISTX_ABI
