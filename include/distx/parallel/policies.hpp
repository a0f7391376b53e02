// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstddef>
#include <type_traits>

#include "distx/core/space.hpp"

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

namespace detail {

template <class P>
inline constexpr bool is_stage = false;
template <int Stage>
inline constexpr bool is_stage<ZeRO<Stage>> = true;
template <class P>
inline constexpr bool is_space = false;
template <class S>
inline constexpr bool is_space<On<S>> = true;

template <class... Ps>
inline constexpr std::size_t stages_named = (std::size_t{0} + ... + (is_stage<Ps> ? 1 : 0));
template <class... Ps>
inline constexpr std::size_t spaces_named = (std::size_t{0} + ... + (is_space<Ps> ? 1 : 0));

enum class PolicyFault { none, no_policy, two_stages, two_spaces, no_stage };

template <class P>
constexpr int stage_named() {
  if constexpr (is_stage<P>) return P::stage;
  else return 0;
}
template <class... Ps>
inline constexpr int stage_of = (0 + ... + stage_named<Ps>());

template <class... Ps>
constexpr PolicyFault policy_fault() {
  if ((std::size_t{0} + ... + (is_stage<Ps> || is_space<Ps> ? 1 : 0)) != sizeof...(Ps)) return PolicyFault::no_policy;
  if (stages_named<Ps...> > 1) return PolicyFault::two_stages;
  if (spaces_named<Ps...> > 1) return PolicyFault::two_spaces;
  if ((false || ... || (stage_named<Ps>() < Dynamic || stage_named<Ps>() > 3))) return PolicyFault::no_stage;
  return PolicyFault::none;
}

/// The sentence for the one thing that is wrong, as the only error.
template <class... Ps>
constexpr bool diagnose_policies() {
  constexpr PolicyFault fault = policy_fault<Ps...>();
  static_assert(fault != PolicyFault::no_policy,
                "distx::DataParallel: one of these types is no policy: policies are ZeRO<0> to ZeRO<3>, ZeRO<Dynamic> and On<Space>; what a "
                "command line might set is an option of the constructor");
  static_assert(fault != PolicyFault::two_stages,
                "distx::DataParallel: ZeRO is named twice among the policies: name one stage");
  static_assert(fault != PolicyFault::two_spaces,
                "distx::DataParallel: On<Space> is named twice among the policies: name one memory space");
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
