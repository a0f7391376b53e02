// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/dist_tensor.hpp"
#include "distx/tensor/redistribution.hpp"

namespace distx {

namespace detail {

template <class L, class MeshT, class T>
struct Ops;
template <class L, class... Axes, class T>
struct Ops<L, Mesh<Axes...>, T> {
  template <class P>
  static AnyOp of() {
    if constexpr (is_partial<P>) {
      static_assert(ReductionOp<typename P::op, T>, "distx: the op of a Partial cannot reduce these elements");
      if constexpr (ReductionOp<typename P::op, T>) return AnyOp::make<T>(typename P::op{});
    }
    return {};
  }
  static std::array<AnyOp, most_axes> all() { return {of<placement_on<L, Axes>>()...}; }
};

template <class From, class To, class MeshT, std::size_t Rank>
Relayout relayout(const MeshShape& shape, const Extents<Rank>& extents, const std::array<AnyOp, most_axes>& ops) {
  Relayout wanted{sharding_of<From, MeshT>(shape, extents), LayoutFacts<From>::template partial_axes<MeshT>(), false,
                  sharding_of<To, MeshT>(shape, extents)};
  OpKind kind{};
  bool any = false;
  for (std::size_t axis = 0; axis < shape.axes; ++axis) {
    if ((wanted.partial >> axis & 1U) == 0) continue;
    const AnyOp& op = ops[axis];
    // The reduction of one term is the term, but for what a user's op may do to it last.
    if (shape.sizes[axis] == 1 && !(op.finishes() && op.kind() == OpKind::user)) {
      wanted.partial &= ~(1U << axis);
      continue;
    }
    if (any && (op.kind() != kind || kind == OpKind::user)) wanted.ops_differ = true;
    kind = op.kind();
    any = true;
  }
  return wanted;
}

template <class L>
constexpr bool may_become() {
  static_assert(!L::has_partial,
                "distx: nothing is redistributed to Partial: leave Partial out of the layout that is asked for");
  return !L::has_partial;
}

template <class X>
auto const_ref(const X& x) {
  using C = std::remove_cvref_t<X>;
  using Space = typename C::space;
  return DistTensorRef<const value_of<C>, C::rank(), mesh_of<C>, layout_of<C>, Space>(
      x.mesh(), x.extents(), Span<const value_of<C>, Space>(x.local()));
}

template <class X, class Out>
auto redistribution(const X& x, Out& out, typename X::space::stream stream, const std::source_location& location) {
  using Space = typename X::space;
  const auto ops = Ops<layout_of<X>, mesh_of<X>, value_of<X>>::all();
  return std::make_unique<Redistribution<Space>>(
      in_space<Space>(x.mesh().state()),
      relayout<layout_of<X>, layout_of<Out>, mesh_of<X>>(x.mesh().shape(), x.extents(), ops), ops,
      Span<const value_of<X>, Space>(x.local()), Span<value_of<X>, Space>(out.local()), stream, location);
}

}  // namespace detail

/// The same tensor in another layout: `redistribute<Shard<0, Data>>(x)`. Collective over the mesh.
///
/// Partials are reduced; what is asked for has none. Each rank receives what it lacks and no more.
/// @post with layouts of shards only, the way there and back gives the same bits
template <class... Ps, DistributedTensor X>
[[nodiscard]] auto redistribute(const X& x, std::source_location location = std::source_location::current()) {
  relaid<X, Layout<Ps...>> out(x.mesh(), x.extents());
  if constexpr (detail::may_become<Layout<Ps...>>())
    detail::redistribution(x, out, typename X::space::stream{}, location)->run();
  return out;
}

/// In place, where no rank's part changes its place or extents: the memory of `x` becomes that of the result.
template <class... Ps, class T, std::size_t Rank, class MeshT, class L, class Space>
[[nodiscard]] auto redistribute(DistTensor<T, Rank, MeshT, L, Space>&& x,
                                std::source_location location = std::source_location::current()) {
  using To = Layout<Ps...>;
  if (x.sharding() != sharding_of<To, MeshT>(x.mesh().shape(), x.extents()))
    return redistribute<Ps...>(std::as_const(x), location);
  TensorPlace<Rank, MeshT, To> place(x.mesh(), x.extents());
  DistTensorRef<T, Rank, MeshT, To, Space> out(place, x.local());
  if constexpr (detail::may_become<To>()) detail::redistribution(x, out, typename Space::stream{}, location)->run();
  return relaid<decltype(x), To>(std::move(place), x.release());
}

}  // namespace distx
