// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

#include "distx/comm/ops.hpp"
#include "distx/tensor/detail/axis_name.hpp"

namespace distx::inline DISTX_ABI {

/// Placement: dimension `Dim` is sharded over `Axis`. Of n indices, coordinate i of p holds [n*i/p, n*(i+1)/p), which
/// may be empty.
///
/// If several axes shard one dimension, they do so in the mesh's order: each shards what the axis before it leaves.
template <std::size_t Dim, class Axis>
struct Shard {
  using axis = Axis;
  static constexpr std::size_t dim = Dim;
};

/// Placement: every rank along `Axis` holds a term of each element; the element is the reduction of the terms with
/// `Op`.
///
/// Partials over several axes whose ops differ are reduced in the mesh's order.
template <class Axis, class Op = Sum>
struct Partial {
  static_assert(
      std::is_empty_v<Op> && std::is_default_constructible_v<Op>,
      "distx: Partial: the op must be an empty type that is default constructible, as its type alone names it");
  using axis = Axis;
  using op = Op;
};

/// Placement: every rank along `Axis` holds the same values. This is the default for axes that a layout does not name.
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
template <class P>
concept Placement = is_shard<P> || is_partial<P> || is_replicated<P>;

/// A layout: a canonical set of placements, at most one per axis. `Layout` makes it.
template <class... Ps>
struct Placements {
  static constexpr bool has_partial = (is_partial<Ps> || ...);
};

/// The layout of the result of a call that does not compile. Everything accepts it, so that one mistake gives one
/// error.
struct PlaceholderLayout {
  static constexpr bool has_partial = false;
};
template <class L>
inline constexpr bool is_placeholder = std::is_same_v<L, PlaceholderLayout>;

template <class T>
inline constexpr bool is_layout = is_placeholder<T>;
template <class... Ps>
inline constexpr bool is_layout<Placements<Ps...>> = true;

template <class... Axes>
inline constexpr bool all_differ = true;
template <class Axis, class... Axes>
inline constexpr bool all_differ<Axis, Axes...> = !(std::is_same_v<Axis, Axes> || ...) && all_differ<Axes...>;

template <class... Ps>
struct Sorted {
  static constexpr bool once = all_differ<typename Ps::axis...>;
  static_assert(once, "distx: Layout: an axis is named twice; give each axis one placement");
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
      "distx: Layout: two axes have the same name, and a layout is sorted by the names of its axes; rename one");
  static constexpr std::array<std::size_t, count> order = [] {
    std::array<std::size_t, count> positions{};
    for (std::size_t i = 0; i != count; ++i)
      for (std::size_t j = 0; j != count; ++j)
        if (names[j] < names[i] || (names[j] == names[i] && j < i)) ++positions[i];
    std::array<std::size_t, count> sorted{};
    for (std::size_t i = 0; i != count; ++i) sorted[positions[i]] = i;
    return sorted;
  }();
  template <std::size_t... I>
  static auto pick(std::index_sequence<I...>) -> Placements<std::tuple_element_t<order[I], std::tuple<Ps...>>...>;
  using type = decltype(pick(std::make_index_sequence<count>{}));
};

/// Leaves out Replicated, which a layout does not name.
template <class Kept, class... Ps>
struct Canonical;
template <class... Kept>
struct Canonical<std::tuple<Kept...>> : Sorted<Kept...> {};
template <class... Kept, class P, class... Ps>
struct Canonical<std::tuple<Kept...>, P, Ps...>
    : std::conditional_t<is_replicated<P>, Canonical<std::tuple<Kept...>, Ps...>,
                         Canonical<std::tuple<Kept..., P>, Ps...>> {};
/// Expands a layout into its placements.
template <class... Kept, class... Its, class... Ps>
struct Canonical<std::tuple<Kept...>, Placements<Its...>, Ps...> : Canonical<std::tuple<Kept...>, Its..., Ps...> {};
template <>
struct Canonical<std::tuple<>, PlaceholderLayout> {
  using type = PlaceholderLayout;
};

}  // namespace detail

/// The layout of a tensor: `Layout<Shard<0, Data>, Partial<Model>>`. Axes that are not named are replicated; the order
/// of the placements does not change the type. A layout among the arguments stands for its placements.
template <class... Ps>
  requires((detail::Placement<Ps> || detail::is_layout<Ps>) && ...)
using Layout = typename detail::Canonical<std::tuple<>, Ps...>::type;

namespace detail {

template <class L, class Axis>
struct PlacementOn {
  using type = Replicated<Axis>;
};
template <class P, class... Ps, class Axis>
struct PlacementOn<Placements<P, Ps...>, Axis> {
  using type = typename std::conditional_t<std::is_same_v<typename P::axis, Axis>, std::type_identity<P>,
                                           PlacementOn<Placements<Ps...>, Axis>>::type;
};
/// The placement of a layout on an axis: `Shard`, `Partial` or `Replicated`.
template <class L, class Axis>
using placement_on = typename PlacementOn<L, Axis>::type;

template <class L, class P>
struct WithPlacement {
  using type = L;  // of a placeholder
};
template <class... Ps, class P>
struct WithPlacement<Placements<Ps...>, P> {
  using type = distx::Layout<
      std::conditional_t<std::is_same_v<typename Ps::axis, typename P::axis>, Replicated<typename Ps::axis>, Ps>..., P>;
};
/// The layout with the placement on one axis replaced by `P`.
template <class L, class P>
using layout_with = typename WithPlacement<L, P>::type;

}  // namespace detail

}  // namespace distx::inline DISTX_ABI
