// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/optim/fused_direction.hpp"

namespace distx::inline DISTX_ABI {

/// An optimizer whose step for each element depends on two norms over the whole parameter, of the weight and of the
/// direction, such as LAMB.
///
/// It contains no communication; distx reduces the norms of a sharded parameter. `states`, `coefficients` and
/// `validate` are those of an ElementwiseOptimizer; instead of `update` it needs:
/// - `template <class V> static constexpr V direction(const auto& coefficients, V weight, V gradient, V& state…)`:
///   updates one element's state and returns its direction;
/// - `static double trust(double weight_norm, double direction_norm)`: returns a factor, given the Euclidean norms;
/// - `template <class V> static constexpr void apply(const auto& coefficients, V& weight, V direction, V factor)`:
///   updates one weight.
template <class O>
concept NormOptimizer = std::copyable<O> && requires {
  { O::states } -> std::convertible_to<std::size_t>;
  { O::trust(double{}, double{}) } -> std::convertible_to<double>;
} && detail::DirectsElements<O, float> && detail::DirectsElements<O, double>;

}  // namespace distx::inline DISTX_ABI
