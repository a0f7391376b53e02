// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>

#include "distx/core/span.hpp"
#include "distx/optim/optimizer.hpp"

// The arguments of GPU kernels that update many arrays in one launch.
namespace distx::inline DISTX_ABI::detail {

/// One of the arrays that a single launch updates, with the optimizer's coefficients in its step.
///
/// If Low is T, weights of T are updated by gradients of T. If Low is bfloat16 or float16 and T is float, `weight` has
/// the master weights of `low`, which receives them rounded; gradients are of float, bfloat16 or float16.
template <MemorySpace Space, class Optimizer, class T, class Low = T, class Gradient = Low>
struct UpdatePiece {
  coefficients_t<Optimizer, accumulator_t<T>> coefficients{};
  Span<T, Space> weight{};
  Span<const Gradient, Space> gradient{};
  std::array<Span<accumulator_t<T>, Space>, Optimizer::states> state{};
  Span<Low, Space> low{};  ///< empty if Low is T
};

/// The factor that gradients are multiplied by before they are used: `*there` if `there` is not null, else `value`. If
/// it is NaN, the update is skipped.
struct GradientFactor {
  double value = 1;
  const double* there = nullptr;  ///< in the memory of the gradients' space
};

}  // namespace distx::inline DISTX_ABI::detail
