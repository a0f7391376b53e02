// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstddef>
#include <optional>
#include <type_traits>

#include "distx/core/space.hpp"
#include "distx/parallel/detail/engine/training_policies.hpp"

namespace distx {

/// The stage of ZeRO (arXiv 1910.02054): what is shared out among the ranks instead of whole on each.
///
/// 0, the default: nothing. 1: the optimizer's state. 2: the gradients too, which have memory while they are needed.
/// 3: the weights too, which are whole in the scopes of `unshard` only. `ZeRO<Dynamic>`: what `.stage` of the options
/// says. The weights come out the same; stages 2 and 3 need owned Parameters.
template <int Stage>
struct ZeRO {
  static constexpr int stage = Stage;
};

/// `ZeRO<Dynamic>`: the stage is known only when the program runs.
inline constexpr int Dynamic = -1;

/// The memory space in which parameters and gradients lie; `On<Host>` is the default.
template <MemorySpace Space>
struct On {
  using space = Space;
};

/// How `Accumulate` keeps the gradients of a step's micro-batches. Local: whole, where they are written, and reduced
/// with the last one: stages 0 and 1. Sharded: each is reduced, and this rank's part of it added up: one more part of
/// the gradients, and as many messages as micro-batches.
struct Local {};
struct Sharded {};

/// A step may be made of several micro-batches, each in a scope of `micro_batch`. Their gradients are added, not
/// averaged: divide each loss by their number for the mean.
template <class How>
struct Accumulate {
  static_assert(std::is_same_v<How, Local> || std::is_same_v<How, Sharded>,
                "distx::Accumulate: gradients are kept Local or Sharded");
};

/// Parameters of bfloat16 and float16 are updated in `Master`, float, of which each rank keeps those that it updates;
/// their gradients travel as `Wire`: bfloat16, float16, or float, which costs a copy in flight. Other parameters are as
/// without it. For float16 the loss is scaled: multiply it by `loss_scale()`. Once the training is made, what else is
/// written into such weights is lost: the masters' values replace it.
template <class Wire, class Master = float>
struct Precision {
  static_assert(std::is_same_v<Master, float>, "distx::Precision: master weights are float");
  static_assert(FloatingElement<Wire> && !std::is_same_v<Wire, double>,
                "distx::Precision: gradients travel as bfloat16, float16 or float");
};

/// Weights, gradients and state are shared out among `.group_ranks` of the options' consecutive ranks, and each such
/// group has all of them: gradients are reduced inside the groups and then across. At stages 1 to 3.
struct Hybrid {};

namespace detail {

template <class P>
inline constexpr bool is_precision = false;
template <class Wire, class Master>
inline constexpr bool is_precision<Precision<Wire, Master>> = true;
template <class P>
struct wire_named {
  static constexpr std::optional<ElementType> type{};
};
template <class Wire, class Master>
struct wire_named<Precision<Wire, Master>> {
  static constexpr std::optional<ElementType> type = element_type<Wire>;
};
template <class... Ps>
constexpr std::optional<ElementType> wire_of_policies() {
  std::optional<ElementType> found;
  ((is_precision<Ps> ? found = wire_named<Ps>::type : found), ...);
  return found;
}
template <class P>
inline constexpr bool is_hybrid = std::is_same_v<P, Hybrid>;
template <class... Ps>
inline constexpr bool hybrid_named = (false || ... || is_hybrid<Ps>);

template <class P>
inline constexpr Accumulation accumulation_named = Accumulation::none;
template <>
inline constexpr Accumulation accumulation_named<Accumulate<Local>> = Accumulation::local;
template <>
inline constexpr Accumulation accumulation_named<Accumulate<Sharded>> = Accumulation::sharded;
template <class P>
inline constexpr bool is_accumulation = accumulation_named<P> != Accumulation::none;
template <class... Ps>
inline constexpr std::size_t accumulations_named = (std::size_t{0} + ... + (is_accumulation<Ps> ? 1 : 0));
template <class... Ps>
constexpr Accumulation accumulation_of() {
  Accumulation found = Accumulation::none;
  ((is_accumulation<Ps> ? found = accumulation_named<Ps> : found), ...);
  return found;
}

template <class P>
inline constexpr bool is_stage = false;
template <int Stage>
inline constexpr bool is_stage<ZeRO<Stage>> = true;
template <class P>
inline constexpr bool is_space = false;
template <class S>
inline constexpr bool is_space<On<S>> = true;

template <class P>
inline constexpr bool is_policy = is_stage<P> || is_space<P> || is_accumulation<P> || is_precision<P> || is_hybrid<P>;

template <class... Ps>
inline constexpr std::size_t stages_named = (std::size_t{0} + ... + (is_stage<Ps> ? 1 : 0));
template <class... Ps>
inline constexpr std::size_t spaces_named = (std::size_t{0} + ... + (is_space<Ps> ? 1 : 0));

enum class PolicyFault {
  none,
  no_policy,
  two_stages,
  two_spaces,
  two_accumulations,
  two_precisions,
  two_hybrids,
  no_stage,
  whole_gradients,
  nothing_shared
};

template <class P>
constexpr int stage_named() {
  if constexpr (is_stage<P>)
    return P::stage;
  else
    return 0;
}
template <class... Ps>
inline constexpr int stage_of = (0 + ... + stage_named<Ps>());

template <class... Ps>
constexpr PolicyFault policy_fault() {
  if (!(true && ... && is_policy<Ps>)) return PolicyFault::no_policy;
  if (stages_named<Ps...> > 1) return PolicyFault::two_stages;
  if (spaces_named<Ps...> > 1) return PolicyFault::two_spaces;
  if (accumulations_named<Ps...> > 1) return PolicyFault::two_accumulations;
  if ((std::size_t{0} + ... + (is_precision<Ps> ? 1 : 0)) > 1) return PolicyFault::two_precisions;
  if ((std::size_t{0} + ... + (is_hybrid<Ps> ? 1 : 0)) > 1) return PolicyFault::two_hybrids;
  if ((false || ... || (stage_named<Ps>() < Dynamic || stage_named<Ps>() > 3))) return PolicyFault::no_stage;
  if (accumulation_of<Ps...>() == Accumulation::local && stage_of<Ps...> >= 2) return PolicyFault::whole_gradients;
  if (hybrid_named<Ps...> && stage_of<Ps...> == 0) return PolicyFault::nothing_shared;
  return PolicyFault::none;
}

/// The sentence for the one thing that is wrong, as the only error.
template <class... Ps>
constexpr bool diagnose_policies() {
  constexpr PolicyFault fault = policy_fault<Ps...>();
  static_assert(fault != PolicyFault::no_policy,
                "distx::DataParallel: one of these types is no policy: policies are ZeRO<0> to ZeRO<3>, "
                "ZeRO<Dynamic>, Accumulate<Local> or <Sharded>, Precision<Wire, Master>, Hybrid and On<Space>; what a "
                "command line might set is an option of the constructor");
  static_assert(fault != PolicyFault::two_stages,
                "distx::DataParallel: ZeRO is named twice among the policies: name one stage");
  static_assert(fault != PolicyFault::two_spaces,
                "distx::DataParallel: On<Space> is named twice among the policies: name one memory space");
  static_assert(fault != PolicyFault::two_accumulations,
                "distx::DataParallel: Accumulate is named twice among the policies: name one of Local and Sharded");
  static_assert(fault != PolicyFault::whole_gradients,
                "distx::DataParallel: Accumulate<Local> keeps whole gradients, which stages 2 and 3 of ZeRO do not "
                "have: name Accumulate<Sharded>");
  static_assert(fault != PolicyFault::two_precisions,
                "distx::DataParallel: Precision is named twice among the policies: name one");
  static_assert(fault != PolicyFault::two_hybrids,
                "distx::DataParallel: Hybrid is named twice among the policies: name it once");
  static_assert(fault != PolicyFault::nothing_shared,
                "distx::DataParallel: Hybrid shares out inside groups what stage 0 of ZeRO does not share out: name "
                "ZeRO<1>, ZeRO<2> or ZeRO<3>");
  static_assert(fault != PolicyFault::no_stage,
                "distx::DataParallel: ZeRO has the stages 0 to 3, and Dynamic for what .stage of the options says");
  return true;
}

template <class Space, class... Ps>
struct space_or {
  using type = Space;
};
template <class Space, class S, class... Ps>
struct space_or<Space, On<S>, Ps...> {
  using type = S;
};
template <class Space, class P, class... Ps>
struct space_or<Space, P, Ps...> : space_or<Space, Ps...> {};

}  // namespace detail

/// Whether `DataParallel<Ps...>` exists: all are policies, and no two contradict each other.
template <class... Ps>
concept CompatiblePolicies = detail::policy_fault<Ps...>() == detail::PolicyFault::none;

/// The space that the policies name, else Host.
template <class... Ps>
using space_of_policies = typename detail::space_or<Host, Ps...>::type;

}  // namespace distx
