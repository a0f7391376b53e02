// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/optim/detail/fused_direction.hpp"

namespace distx {

/// An optimizer whose step for each element hangs on two norms over the whole parameter: the weight's and the
/// direction's.
///
/// It has no word of distribution in it; whoever cuts the parameter up reduces the norms. `states`, `coefficients` and
/// `validate` are those of an ElementwiseOptimizer; in place of `update` there are
/// - `template <class V> static constexpr V direction(const auto& coefficients, V weight, V gradient, V& state…)`: one
///   element's direction;
/// - `static double trust(double weight_norm, double direction_norm)`: Euclidean norms in, a factor out;
/// - `template <class V> static constexpr void apply(const auto& coefficients, V& weight, V direction, V factor)`.
template <class O>
concept NormOptimizer = std::copyable<O> && requires {
  { O::states } -> std::convertible_to<std::size_t>;
  { O::trust(double{}, double{}) } -> std::convertible_to<double>;
} && detail::DirectsElements<O, float> && detail::DirectsElements<O, double>;

}  // namespace distx
