// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/detail/redistribution_plan.hpp"
#include "distx/tensor/dist_tensor_spec.hpp"

// From two layouts as types to their description as a value, which the redistribution is planned from.
namespace distx::inline DISTX_ABI::detail {

/// The ops of a layout's Partials, indexed by axis.
template <class L, class MeshT, class T>
struct PartialOps;
template <class L, class... Axes, class T>
struct PartialOps<L, Mesh<Axes...>, T> {
  template <class P>
  static AnyOp of() {
    if constexpr (is_partial<P>) {
      static_assert(ReductionOp<typename P::op, T>,
                    "distx: redistribute: the op of a Partial cannot reduce this element type");
      if constexpr (ReductionOp<typename P::op, T>) return AnyOp::make<T>(typename P::op{});
    }
    return {};
  }
  static std::array<AnyOp, max_axes> all() { return {of<placement_on<L, Axes>>()...}; }
};

template <class From, class To, class MeshT, std::size_t Rank>
[[nodiscard]] Relayout relayout(const MeshShape& shape, const Extents<Rank>& extents,
                                const std::array<AnyOp, max_axes>& ops) {
  Relayout wanted{sharding_of<From, MeshT>(shape, extents), partial_axes<From, MeshT>() & ~partial_axes<To, MeshT>(),
                  false, sharding_of<To, MeshT>(shape, extents)};
  std::optional<OpKind> kind;
  for (std::size_t axis = 0; axis < shape.axes; ++axis) {
    if ((wanted.partial >> axis & 1U) == 0) continue;
    const AnyOp& op = ops[axis];
    // The reduction of one term is the term, unless a user's op has a `finish`.
    if (shape.sizes[axis] == 1 && !(op.finishes() && op.kind() == OpKind::user)) {
      wanted.partial &= ~(1U << axis);
      continue;
    }
    if (kind && (op.kind() != kind || kind == OpKind::user)) wanted.ops_differ = true;
    kind = op.kind();
  }
  return wanted;
}

/// Whether reductions of these placements commute: one of them is not Partial, or both have the same op.
template <class P, class Q>
inline constexpr bool commute = true;
template <class A, class OpOfA, class B, class OpOfB>
inline constexpr bool commute<Partial<A, OpOfA>, Partial<B, OpOfB>> = std::is_same_v<OpOfA, OpOfB>;

template <class From, class To>
struct KeptPartials;
template <class... Froms, class... Tos>
struct KeptPartials<Placements<Froms...>, Placements<Tos...>> {
  template <class To>
  static constexpr bool kept =
      !is_partial<To> || std::is_same_v<placement_on<Placements<Froms...>, typename To::axis>, To>;
  template <class From>
  static constexpr bool commutes = (commute<From, Tos> && ...);
  /// Whether each Partial of the target is one of the source.
  static constexpr bool all = (kept<Tos> && ...);
  /// Whether the order of the reductions does not matter.
  static constexpr bool ops_agree = (commutes<Froms> && ...);
};

/// Whether one layout can become another; a compile-time error if not.
template <class From, class To>
constexpr bool may_become() {
  if constexpr (is_placeholder<From> || is_placeholder<To>) {
    return true;
  } else if constexpr (!KeptPartials<From, To>::all) {
    static_assert(KeptPartials<From, To>::all,
                  "distx: redistribute: a tensor cannot become Partial; name only the Partials that it already has");
    return false;
  } else {
    static_assert(KeptPartials<From, To>::ops_agree,
                  "distx: redistribute: a Partial is kept while a Partial with another op is reduced, and the order of "
                  "these reductions matters; reduce both");
    return KeptPartials<From, To>::ops_agree;
  }
}

}  // namespace distx::inline DISTX_ABI::detail
