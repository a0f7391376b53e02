// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/redistribute.hpp"

// The collectives on a distributed tensor, along one axis of its mesh that is named: redistributions that say what they
// are, and do not compile where they would be something else.
namespace distx {

namespace detail {

template <class X, class Axis>
constexpr bool on_mesh() {
  static_assert(mesh_of<X>::template has_axis<Axis>, "distx: the tensor's mesh has no such axis");
  return mesh_of<X>::template has_axis<Axis>;
}
template <class X, class Axis>
using placed = placement_on<layout_of<X>, Axis>;

/// The tensor with another placement on one axis; of a wrong call the tensor that there would be.
template <class P, bool Right, class X>
auto replaced(X&& x, const std::source_location& location) {
  using To = layout_with<layout_of<X>, P>;
  if constexpr (Right)
    return redistribute<To>(std::forward<X>(x), location);
  else
    return relaid<X, To>(x.mesh(), x.extents());
}

}  // namespace detail

/// Every rank along the axis gets the reduction of all their terms: `all_reduce<Model>(x)` of a Partial. An rvalue is
/// reduced in place.
template <class Axis, DistributedTensor X>
[[nodiscard]] auto all_reduce(X&& x, std::source_location location = std::source_location::current()) {
  constexpr bool right = detail::on_mesh<X, Axis>() && detail::is_partial<detail::placed<X, Axis>>;
  static_assert(!detail::on_mesh<X, Axis>() || right, "distx: all_reduce: the tensor is not Partial over this axis");
  return detail::replaced<Replicated<Axis>, right>(std::forward<X>(x), location);
}

/// Each rank along the axis gets its shard of the reduction of all their terms: `reduce_scatter<Model, 0>(x)`.
template <class Axis, std::size_t Dim, DistributedTensor X>
[[nodiscard]] auto reduce_scatter(X&& x, std::source_location location = std::source_location::current()) {
  constexpr bool right = detail::on_mesh<X, Axis>() && detail::is_partial<detail::placed<X, Axis>>;
  static_assert(!detail::on_mesh<X, Axis>() || right,
                "distx: reduce_scatter: the tensor is not Partial over this axis");
  return detail::replaced<Shard<Dim, Axis>, right>(std::forward<X>(x), location);
}

/// Every rank along the axis gets all their shards: `all_gather<Model>(x)`.
template <class Axis, DistributedTensor X>
[[nodiscard]] auto all_gather(X&& x, std::source_location location = std::source_location::current()) {
  constexpr bool right = detail::on_mesh<X, Axis>() && detail::is_shard<detail::placed<X, Axis>>;
  static_assert(!detail::on_mesh<X, Axis>() || right, "distx: all_gather: no dimension is sharded over this axis");
  return detail::replaced<Replicated<Axis>, right>(std::forward<X>(x), location);
}

/// The axis shards another dimension than before: `all_to_all<Model, 1>(x)` of a tensor with `Shard<0, Model>`.
template <class Axis, std::size_t Dim, DistributedTensor X>
[[nodiscard]] auto all_to_all(X&& x, std::source_location location = std::source_location::current()) {
  constexpr bool right = detail::on_mesh<X, Axis>() && detail::is_shard<detail::placed<X, Axis>>;
  static_assert(!detail::on_mesh<X, Axis>() || right, "distx: all_to_all: no dimension is sharded over this axis");
  return detail::replaced<Shard<Dim, Axis>, right>(std::forward<X>(x), location);
}

}  // namespace distx
