// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <concepts>
#include <cstddef>
#include <utility>

#include "distx/core/element.hpp"
#include "distx/optim/step.hpp"

namespace distx {

/// The numbers that an optimizer works out once a step and uses in every element: what its `coefficients<T>` returns.
template <class Optimizer, class T>
using coefficients_t = decltype(std::declval<const Optimizer&>().template coefficients<T>(std::declval<const Step&>()));

namespace detail {

template <class Optimizer, class V, class Coefficients, std::size_t N, std::size_t... I>
constexpr void update_element(const Coefficients& coefficients, V& weight, V gradient, std::array<V, N>& state,
                              std::index_sequence<I...>) {
  Optimizer::update(coefficients, weight, gradient, state[I]...);
}

template <class Optimizer, class T, std::size_t... I>
auto updates(std::index_sequence<I...>)
    -> decltype(Optimizer::update(std::declval<const coefficients_t<Optimizer, T>&>(), std::declval<T&>(),
                                  std::declval<T>(), std::declval<std::array<T, sizeof...(I)>&>()[I]...));

template <class Optimizer, class T>
concept UpdatesElements = requires { updates<Optimizer, T>(std::make_index_sequence<Optimizer::states>{}); };

}  // namespace detail

/// An optimizer whose update of one weight looks at nothing but that weight, its gradient and its own state.
///
/// It has no word of distribution in it, and may be sharded anywhere:
/// - `static constexpr std::size_t states`: values that it keeps for each weight; they are zero at first;
/// - `template <class T> … coefficients(const Step&) const`: what is the same for all elements of one step, in T,
///   float or double;
/// - `template <class V> static constexpr void update(const auto& coefficients, V& weight, V gradient, V& state…)`: one
///   element's arithmetic. V is a number, one whose operations a GPU rounds one by one, or several at once (Lanes), so
///   it has operators, unqualified functions (sqrt, abs, copysign, min, max) and `distx::select`, but no `if`;
/// - on GPUs too, all that with `constexpr` before it compiles, where nvcc is given --expt-relaxed-constexpr; both the
///   optimizer and its coefficients are trivially copyable, and one line registers it (distx/cuda_kernels.cuh);
/// - `void validate() const`, if it is there, throws distx::Error for parameters that make no sense.
template <class O>
concept ElementwiseOptimizer = std::copyable<O> && requires {
  { O::states } -> std::convertible_to<std::size_t>;
} && detail::UpdatesElements<O, float> && detail::UpdatesElements<O, double>;

/// Whether the optimizer decays weights, so that a group may set another decay: it has a member `weight_decay`, or is
/// made of optimizers that have one.
template <class O>
concept DecaysWeights = requires(const O& optimizer) {
  { optimizer.weight_decay } -> std::convertible_to<double>;
} || requires { requires O::decays_weights; };

/// @throws Error where the optimizer's own `validate` does
template <class O>
void validate_optimizer(const O& optimizer) {
  if constexpr (requires { optimizer.validate(); }) optimizer.validate();
}

}  // namespace distx
