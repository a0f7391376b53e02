// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/dist_tensor.hpp"
#include "distx/tensor/ops/axis_placement.hpp"

// A rule states, for one axis of the mesh, which placements of its operands an operation takes and how its result is
// placed. An operation compiles if the rule supports the operands' placements on every axis.
//
//   struct Square {
//     static constexpr std::string_view name = "square";
//     static constexpr rules::AxisPlacement on(rules::AxisPlacement x) {   // on one axis of the mesh
//       if (x.is_replicated() || x.is_shard()) return x;
//       return rules::unsupported;
//     }
//     template <std::size_t Rank>
//     static Extents<Rank> extents(const Extents<Rank>& x) { return x; }   // of the result
//   };
//   auto y = rules::apply<Square>(x, [](auto in, auto out) { … });
namespace distx::inline DISTX_ABI {

namespace detail {

/// Thrown by a rule's `extents`; the operation turns it into an InvalidArgument with its caller's context.
struct ExtentsMismatch {
  std::string message;
};

}  // namespace detail

namespace rules {

/// Rejects the operands' extents in a rule's `extents`: the operation then throws an InvalidArgument with these words.
template <std::size_t... Ranks>
[[noreturn]] void extents_mismatch(std::string_view requirement, const Extents<Ranks>&... extents) {
  std::string text;
  ((text += (text.empty() ? "" : " and ") + detail::to_string(extents)), ...);
  throw detail::ExtentsMismatch{"operands of extents " + text + " do not match: " + std::string(requirement)};
}

/// The numbers of dimensions of a rule's operands.
template <std::size_t... Ranks>
struct Dimensions {};

/// The placements, on one mesh axis, of operands with the given ranks, and the rule's result for them.
template <class Rule, class Ranks, class... PlacementsOfOperands>
struct Case;
template <class Rule, std::size_t... Ranks, class... Ps>
struct Case<Rule, Dimensions<Ranks...>, Ps...> {
  static constexpr std::array<AxisPlacement, sizeof...(Ps)> operands{detail::axis_placement<Ps>(Ranks)...};
  static constexpr AxisPlacement result = Rule::on(detail::axis_placement<Ps>(Ranks)...);
};

/// Whether the rule supports a case. A compile-time error of an operation shows the case that is not supported.
template <class SomeCase>
inline constexpr bool is_supported =
    SomeCase::result.kind != AxisPlacement::Kind::unsupported &&
    (!SomeCase::result.is_partial() || SomeCase::result.is_sum() || SomeCase::result.is_max());

}  // namespace rules

namespace detail {

using rules::is_supported;

template <class Axis, class Rule, class... Xs>
using case_on = rules::Case<Rule, rules::Dimensions<rank_of<Xs>...>, placement_on<layout_of<Xs>, Axis>...>;
template <class Axis, class SomeCase>
using placement_for =
    typename PlacementType<Axis, SomeCase::result.kind, SomeCase::result.dim, SomeCase::result.op>::type;

template <class Rule, class MeshT, class... Xs>
struct RuleOnMesh;
template <class Rule, class... Axes, class... Xs>
struct RuleOnMesh<Rule, Mesh<Axes...>, Xs...> {
  /// Whether an operand is the result of a call that does not compile: then nothing more is diagnosed.
  static constexpr bool placeholder = (is_placeholder<layout_of<Xs>> || ...);
  static constexpr bool applies = placeholder || (is_supported<case_on<Axes, Rule, Xs...>> && ...);
  using layout = std::conditional_t<placeholder, PlaceholderLayout,
                                    distx::Layout<placement_for<Axes, case_on<Axes, Rule, Xs...>>...>>;
  static constexpr std::size_t unsupported_axis = [] {  // the first one
    std::size_t axis = 0;
    const bool all = ((is_supported<case_on<Axes, Rule, Xs...>> && (++axis, true)) && ...);
    return all ? 0 : axis;
  }();
  /// The first case that is not supported. @pre !applies
  using missing = std::tuple_element_t<unsupported_axis, std::tuple<case_on<Axes, Rule, Xs...>...>>;
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

namespace rules {

/// Whether an operation with this rule applies to tensors of these types, without communication.
template <class Rule, class... Xs>
concept Applicable = detail::DistributedTensors<Xs...> && detail::on_one_mesh<Xs...> &&
                     detail::RuleOnMesh<Rule, detail::mesh_of<detail::first_of<Xs...>>, Xs...>::applies;

}  // namespace rules

namespace detail {

using rules::Applicable;

/// The layout of the result. @pre Applicable<Rule, Xs...>
template <class Rule, class... Xs>
using result_layout = typename RuleOnMesh<Rule, mesh_of<first_of<Xs...>>, Xs...>::layout;

/// Stands for the missing case where there is none to explain: the operation applies, or the operands are on different
/// meshes, which `applied` diagnoses.
template <std::size_t Operands>
struct NoCase {
  static constexpr std::array<AxisPlacement, Operands> operands{};
  static constexpr AxisPlacement result = rules::replicated;
};
template <class Rule, class... Xs>
constexpr auto first_missing() {
  if constexpr (!on_one_mesh<Xs...> || Applicable<Rule, Xs...>)
    return std::type_identity<NoCase<sizeof...(Xs)>>();
  else
    return std::type_identity<typename RuleOnMesh<Rule, mesh_of<first_of<Xs...>>, Xs...>::missing>();
}
/// The first case that the rule does not support, for a static_assert that explains it.
template <class Rule, class... Xs>
using missing_case = typename decltype(first_missing<Rule, Xs...>())::type;

/// For a static_assert that explains why an operation does not compile: false if this is the reason. Its first argument
/// is shown by the compiler.
template <class MissingCase, bool ThisReason>
inline constexpr bool supported_unless = !ThisReason || is_supported<MissingCase>;

}  // namespace detail

}  // namespace distx::inline DISTX_ABI
