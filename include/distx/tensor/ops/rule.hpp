// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/detail/place.hpp"
#include "distx/tensor/dist_tensor.hpp"

// What a rule is: which placements of its operands an operation takes, and how its result then lies.
//
//   struct Square {
//     static constexpr AxisPlace on(AxisPlace x) {          // on one axis of the mesh
//       if (x.is_replicated() || x.is_shard()) return x;
//       return places::none;                        // of all else: it does not compile
//     }
//     template <std::size_t Rank>
//     static Extents<Rank> extents(const Extents<Rank>& x) { return x; }  // the result's; throws where they do not fit
//   };
namespace distx {

/// The numbers of dimensions of a rule's operands.
template <std::size_t... Ranks>
struct Dimensions {};

/// Operands of so many dimensions that are placement_for so on one axis.
template <class Rule, class Ranks, class... PlacementsOfOperands>
struct Case;
template <class Rule, std::size_t... Ranks, class... Ps>
struct Case<Rule, Dimensions<Ranks...>, Ps...> {
  static constexpr std::array<AxisPlace, sizeof...(Ps)> operands{detail::place_of<Ps>(Ranks)...};
  static constexpr AxisPlace result = Rule::on(detail::place_of<Ps>(Ranks)...);
};

/// Whether the rule has such a case. A compiler that refuses an operation shows the one that was missing.
template <class SomeCase>
inline constexpr bool is_ruled = SomeCase::result.kind != AxisPlace::Kind::refused;

namespace detail {

template <class Axis, class Rule, class... Xs>
using case_on = Case<Rule, Dimensions<rank_of<Xs>...>, placement_on<layout_of<Xs>, Axis>...>;
template <class Axis, class SomeCase>
using placement_for = typename Placed<Axis, SomeCase::result.kind, SomeCase::result.dim, SomeCase::result.op>::type;

template <class Rule, class MeshT, class... Xs>
struct Ruled;
template <class Rule, class... Axes, class... Xs>
struct Ruled<Rule, Mesh<Axes...>, Xs...> {
  static constexpr bool applies = (is_ruled<case_on<Axes, Rule, Xs...>> && ...);
  using layout = distx::Layout<placement_for<Axes, case_on<Axes, Rule, Xs...>>...>;
  static constexpr std::size_t refusing = [] {  // the first axis without a case
    std::size_t axis = 0;
    const bool all = ((is_ruled<case_on<Axes, Rule, Xs...>> && (++axis, true)) && ...);
    return all ? 0 : axis;
  }();
  /// The case that is missing. @pre !applies
  using missing = std::tuple_element_t<refusing, std::tuple<case_on<Axes, Rule, Xs...>...>>;
};

template <class X, class...>
struct First {
  using type = X;
};
template <class... Xs>
using first_of = typename First<Xs...>::type;
template <class... Xs>
inline constexpr bool on_one_mesh = (std::is_same_v<mesh_of<Xs>, mesh_of<first_of<Xs...>>> && ...);

}  // namespace detail

/// What operations are done to: distributed tensors.
template <class... Xs>
concept Operands = (DistributedTensor<Xs> && ...);

/// Whether an operation with this rule may be done to these tensors as they lie, without communication.
template <class Rule, class... Xs>
concept Applicable = Operands<Xs...> && detail::on_one_mesh<Xs...> &&
                     detail::Ruled<Rule, mesh_of<detail::first_of<Xs...>>, Xs...>::applies;

/// The layout of the result. @pre Applicable<Rule, Xs...>
template <class Rule, class... Xs>
using result_layout = typename detail::Ruled<Rule, mesh_of<detail::first_of<Xs...>>, Xs...>::layout;

namespace detail {

template <class Rule, class... Xs>
using missing_case = typename Ruled<Rule, mesh_of<first_of<Xs...>>, Xs...>::missing;

}  // namespace detail

}  // namespace distx
