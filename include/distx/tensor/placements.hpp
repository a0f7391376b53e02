// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

#include "distx/comm/ops.hpp"
#include "distx/tensor/axis_name.hpp"

namespace distx {

/// Along `Axis`, dimension `Dim` is cut: place i of p has the indices from n*i/p up to n*(i+1)/p of n, maybe none.
///
/// Where several axes cut one dimension, they do so in the mesh's order: each cuts what the one before it has left.
template <std::size_t Dim, class Axis>
struct Shard {
  using axis = Axis;
  static constexpr std::size_t dim = Dim;
};

/// Along `Axis`, every rank has a term of each element; the element is the reduction of the terms.
///
/// Partials over several axes are reduced in the mesh's order if their ops differ.
template <class Axis, class Op = Sum>
struct Partial {
  static_assert(std::is_empty_v<Op> && std::is_default_constructible_v<Op>,
                "distx: the op of a Partial is named by its type alone: it may have no members");
  using axis = Axis;
  using op = Op;
};

/// Along `Axis`, every rank has the same. What a layout does not name is so; naming it changes nothing.
template <class Axis>
struct Replicated {
  using axis = Axis;
};

namespace detail {

template <class P>
inline constexpr bool is_shard = false;
template <std::size_t Dim, class Axis>
inline constexpr bool is_shard<Shard<Dim, Axis>> = true;
template <class P>
inline constexpr bool is_partial = false;
template <class Axis, class Op>
inline constexpr bool is_partial<Partial<Axis, Op>> = true;
template <class P>
inline constexpr bool is_replicated = false;
template <class Axis>
inline constexpr bool is_replicated<Replicated<Axis>> = true;

}  // namespace detail

template <class P>
concept Placement = detail::is_shard<P> || detail::is_partial<P> || detail::is_replicated<P>;

/// How a tensor lies on a mesh: a set of placements, one for an axis at most. `Layout` makes one.
template <class... Ps>
struct Placements {
  static constexpr std::size_t size = sizeof...(Ps);
  static constexpr bool has_partial = (detail::is_partial<Ps> || ...);
};

namespace detail {

template <class T>
inline constexpr bool is_layout = false;
template <class... Ps>
inline constexpr bool is_layout<Placements<Ps...>> = true;

template <class... Axes>
inline constexpr bool all_differ = true;
template <class Axis, class... Axes>
inline constexpr bool all_differ<Axis, Axes...> = !(std::is_same_v<Axis, Axes> || ...) && all_differ<Axes...>;

template <class... Ps>
struct Sorted {
  static constexpr bool once = all_differ<typename Ps::axis...>;
  static_assert(once,
                "distx: an axis is named twice in a layout: it shards one dimension, or is Partial, or is not named");
  static constexpr std::size_t count = sizeof...(Ps);
  static constexpr std::array<std::string_view, count> names{spelling_of<typename Ps::axis>()...};
  static_assert(
      !once ||
          [] {
            for (std::size_t i = 0; i != count; ++i)
              for (std::size_t j = 0; j < i; ++j)
                if (names[i] == names[j]) return false;
            return true;
          }(),
      "distx: two axes of a layout have one name: the order of a layout is by the names of its axes");
  static constexpr std::array<std::size_t, count> order = [] {
    std::array<std::size_t, count> places{};
    for (std::size_t i = 0; i != count; ++i)
      for (std::size_t j = 0; j != count; ++j)
        if (names[j] < names[i] || (names[j] == names[i] && j < i)) ++places[i];
    std::array<std::size_t, count> sorted{};
    for (std::size_t i = 0; i != count; ++i) sorted[places[i]] = i;
    return sorted;
  }();
  template <std::size_t... I>
  static auto pick(std::index_sequence<I...>) -> Placements<std::tuple_element_t<order[I], std::tuple<Ps...>>...>;
  using type = decltype(pick(std::make_index_sequence<count>{}));
};

/// Leaves out what is replicated, which a layout does not name.
template <class Kept, class... Ps>
struct Canonical;
template <class... Kept>
struct Canonical<std::tuple<Kept...>> : Sorted<Kept...> {};
template <class... Kept, class P, class... Ps>
struct Canonical<std::tuple<Kept...>, P, Ps...>
    : std::conditional_t<is_replicated<P>, Canonical<std::tuple<Kept...>, Ps...>,
                         Canonical<std::tuple<Kept..., P>, Ps...>> {};
/// A layout in place of its placements.
template <class... Kept, class... Its, class... Ps>
struct Canonical<std::tuple<Kept...>, Placements<Its...>, Ps...> : Canonical<std::tuple<Kept...>, Its..., Ps...> {};

}  // namespace detail

/// The set of these placements: the same type in whatever order they are named. An axis not named is replicated.
template <class... Ps>
  requires((Placement<Ps> || detail::is_layout<Ps>) && ...)
using Layout = typename detail::Canonical<std::tuple<>, Ps...>::type;

namespace detail {

template <class L, class Axis>
struct PlacementOn;
template <class Axis>
struct PlacementOn<Placements<>, Axis> {
  using type = Replicated<Axis>;
};
template <class P, class... Ps, class Axis>
struct PlacementOn<Placements<P, Ps...>, Axis> {
  using type = typename std::conditional_t<std::is_same_v<typename P::axis, Axis>, std::type_identity<P>,
                                           PlacementOn<Placements<Ps...>, Axis>>::type;
};

template <class L, class P>
struct With;
template <class... Ps, class P>
struct With<Placements<Ps...>, P> {
  using type = distx::Layout<
      std::conditional_t<std::is_same_v<typename Ps::axis, typename P::axis>, Replicated<typename Ps::axis>, Ps>..., P>;
};

}  // namespace detail

/// What a layout says of an axis: `Shard`, `Partial` or `Replicated`.
template <class L, class Axis>
using placement_on = typename detail::PlacementOn<L, Axis>::type;

/// The same layout but for one axis, which has this placement.
template <class L, class P>
using layout_with = typename detail::With<L, P>::type;

}  // namespace distx
