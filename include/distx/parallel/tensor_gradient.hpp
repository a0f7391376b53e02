// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/redistribute.hpp"

// Which reductions the layout of a weight's gradient requires.
namespace distx::inline DISTX_ABI::detail {

enum class GradientFault {
  no_fault,
  weight_on_data,
  terms_of_shards,
  whole_of_shards,
  shards_of_whole,
  other_dimension,
  op
};

/// Returns the fault on one axis of the mesh.
template <class Weight, class Gradient>
constexpr GradientFault gradient_fault(bool data) {
  if constexpr (is_partial<Gradient>) {
    if (!std::is_same_v<typename Gradient::op, Sum>) return GradientFault::op;
    if (is_shard<Weight>) return data ? GradientFault::weight_on_data : GradientFault::terms_of_shards;
  } else if constexpr (is_shard<Weight>) {
    if (data) return GradientFault::weight_on_data;
    if (!is_shard<Gradient>) return GradientFault::whole_of_shards;
    if (!std::is_same_v<Weight, Gradient>) return GradientFault::other_dimension;
  } else if constexpr (is_shard<Gradient>) {
    return GradientFault::shards_of_whole;
  }
  return GradientFault::no_fault;
}

template <class Data, class W, class G, class MeshT>
struct GradientFacts;
template <class Data, class W, class G, class... Axes>
struct GradientFacts<Data, W, G, Mesh<Axes...>> {
  static constexpr GradientFault fault = [] {
    GradientFault first = GradientFault::no_fault;
    if (is_placeholder<G>) return first;
    ((first == GradientFault::no_fault
          ? first = gradient_fault<placement_on<W, Axes>, placement_on<G, Axes>>(std::is_same_v<Axes, Data>)
          : first),
     ...);
    return first;
  }();
  /// The weight's layout, with a Partial over the data axis kept.
  using reduced = std::conditional_t<is_partial<placement_on<G, Data>>, layout_with<W, Partial<Data>>, W>;
};

template <class W, class G>
inline constexpr bool same_kind =
    std::is_same_v<mesh_of<W>, mesh_of<G>> && rank_of<W> == rank_of<G> &&
    (std::is_same_v<value_of<G>, value_of<W>> || std::is_same_v<value_of<G>, accumulator_t<value_of<W>>>);

template <class... Ps, class G>
auto reduced_to(std::type_identity<Placements<Ps...>>, const G& gradient, const std::source_location& location) {
  return redistribute<Ps...>(gradient, location);
}

/// Diagnoses the first fault with one compile error.
template <class W, class G, class Data>
constexpr void diagnose_gradient() {
  static_assert(DistributedTensor<G>,
                "distx: ready: the gradient is not a distributed tensor; pass the result of an operation's backward "
                "function, whose type determines the axes over which it is reduced");
  if constexpr (DistributedTensor<G>) {
    static_assert(same_kind<W, G>,
                  "distx: ready: weight and gradient differ in their mesh, their elements or their number of "
                  "dimensions");
    if constexpr (same_kind<W, G>) {
      constexpr GradientFault fault = GradientFacts<Data, layout_of<W>, layout_of<G>, mesh_of<W>>::fault;
      static_assert(fault != GradientFault::weight_on_data,
                    "distx: ready: the weight is sharded over the data axis; omit that axis from its layout, and use "
                    "ZeRO to shard along it");
      static_assert(fault != GradientFault::terms_of_shards,
                    "distx: ready: the gradient is Partial over an axis that shards the weight; redistribute it to the "
                    "weight's layout first");
      static_assert(fault != GradientFault::whole_of_shards,
                    "distx: ready: the gradient is replicated over an axis that shards the weight; redistribute it to "
                    "the weight's layout first");
      static_assert(fault != GradientFault::shards_of_whole,
                    "distx: ready: the gradient is sharded over an axis over which the weight is replicated; sum it "
                    "over that dimension, which makes it Partial, or redistribute it to Replicated there");
      static_assert(fault != GradientFault::other_dimension,
                    "distx: ready: weight and gradient are sharded in different dimensions; redistribute the gradient "
                    "to the weight's layout first");
      static_assert(fault != GradientFault::op,
                    "distx: ready: the gradient is Partial with another op than Sum; gradients must be sums");
    }
  }
}

/// Whether `ready(weight, gradient)` compiles for a training along the axis `Data`: on the axes that shard the weight,
/// the gradient is sharded alike; on the others it is Replicated, or Partial and will be reduced.
template <class G, class W, class Data>
concept GradientOf = DistributedTensor<W> && DistributedTensor<G> && same_kind<W, G> &&
                     GradientFacts<Data, layout_of<W>, layout_of<G>, mesh_of<W>>::fault == GradientFault::no_fault;

}  // namespace distx::inline DISTX_ABI::detail
