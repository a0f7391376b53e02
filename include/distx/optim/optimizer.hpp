// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "distx/memory/lanes.hpp"
#include "distx/optim/step.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

/// The type that an optimizer's `coefficients<T>(step)` returns: the numbers of one step that every element uses.
template <class Optimizer, class T>
using coefficients_t = decltype(std::declval<const Optimizer&>().template coefficients<T>(std::declval<const Step&>()));

template <class Optimizer, class V, class Coefficients, std::size_t N, std::size_t... I>
constexpr void update_element(const Coefficients& coefficients, V& weight, V gradient, std::array<V, N>& state,
                              std::index_sequence<I...>) {
  Optimizer::update(coefficients, weight, gradient, state[I]...);
}

template <class Optimizer, class T, class V, std::size_t... I>
auto updates(std::index_sequence<I...>)
    -> decltype(Optimizer::update(std::declval<const coefficients_t<Optimizer, T>&>(), std::declval<V&>(),
                                  std::declval<V>(), std::declval<std::array<V, sizeof...(I)>&>()[I]...));

/// `update` accepts elements of type V, a number T or several of them.
template <class Optimizer, class T, class V>
concept Updates = requires { updates<Optimizer, T, V>(std::make_index_sequence<Optimizer::states>{}); };

template <class Optimizer, class T>
concept UpdatesElements = Updates<Optimizer, T, T> && Updates<Optimizer, T, Lanes<T>>;

/// Accepts one number, and not several at once: a diagnosable near miss of ElementwiseOptimizer.
template <class Optimizer>
concept UpdatesOneNumber = (Updates<Optimizer, float, float> || Updates<Optimizer, double, double>) &&
                           !(UpdatesElements<Optimizer, float> && UpdatesElements<Optimizer, double>);

}  // namespace detail

/// An optimizer whose update of a weight depends only on that weight, its gradient and its own state, such as AdamW.
///
/// It contains no communication and can be sharded anywhere. It needs:
/// - `static constexpr std::size_t states`: the number of values it keeps for each weight, initially zero;
/// - `template <class T> … coefficients(const Step&) const`: the numbers that all elements of a step share, computed in
///   T, which is float or double;
/// - `template <class V> static constexpr void update(const auto& coefficients, V& weight, V gradient, V& state…)`: the
///   arithmetic of one element. V is a number, or several at once: use operators, unqualified functions (sqrt, abs,
///   copysign, min, max) and `distx::select` instead of `if` and `?:`;
/// - optionally `static constexpr std::array<std::string_view, states> state_names`: the names of these values in
///   checkpoints, distinct and not `step`, `master` or `exponential_average…`;
/// - optionally `void validate() const`, which throws distx::InvalidArgument for invalid hyperparameters.
///
/// On GPUs: `coefficients` and `update` are constexpr and nvcc is given --expt-relaxed-constexpr, the optimizer and its
/// coefficients are trivially copyable, and one line registers it (distx/cuda_kernels.cuh).
template <class O>
concept ElementwiseOptimizer = std::copyable<O> && requires {
  { O::states } -> std::convertible_to<std::size_t>;
} && detail::UpdatesElements<O, float> && detail::UpdatesElements<O, double>;

namespace detail {

/// An optimizer whose weight decay a parameter group may override: it has a member `weight_decay`, or consists of
/// optimizers that have one.
template <class O>
concept DecaysWeights = requires(const O& optimizer) {
  { optimizer.weight_decay } -> std::convertible_to<double>;
} || requires { requires O::decays_weights; };

/// Whether names are distinct, and none is that of another array in a checkpoint.
[[nodiscard]] constexpr bool are_state_names(std::span<const std::string_view> names) noexcept {
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == "step" || names[i] == "master" || names[i].starts_with("exponential_average")) return false;
    for (std::size_t k = 0; k < i; ++k)
      if (names[i] == names[k]) return false;
  }
  return true;
}

/// Returns the name of the k-th value that an optimizer keeps for each weight: of its `state_names`, or else
/// "state<k>".
template <class O>
[[nodiscard]] std::string state_name(std::size_t k) {
  if constexpr (requires { O::state_names; }) {
    static_assert(O::state_names.size() == O::states, "distx: an optimizer's state_names has one name for each state");
    static_assert(are_state_names(O::state_names),
                  "distx: an optimizer's state_names are distinct, and none is 'step', 'master' or begins with "
                  "'exponential_average', which checkpoints use");
    return std::string(O::state_names[k]);
  } else {
    return "state" + std::to_string(k);
  }
}

/// @throws InvalidArgument if the optimizer's `validate`, where it has one, does
template <class O>
void validate_optimizer(const O& optimizer) {
  if constexpr (requires { optimizer.validate(); }) optimizer.validate();
}

}  // namespace detail

}  // namespace distx::inline DISTX_ABI
