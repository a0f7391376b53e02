// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/core/error.hpp"
#include "distx/optim/step.hpp"

namespace distx::inline DISTX_ABI {

/// Stands in for an optimizer where the user updates weights: a step is `reduce_gradients`, an update of what `owned`
/// returns, and `gather_weights`. It keeps nothing.
struct NoOptimizer {
  static constexpr std::size_t states = 0;

  /// The numbers of a step: none.
  template <class T>
  struct Coefficients {};

  /// @throws InvalidState from `step` and `update_weights`, which need an optimizer
  template <class T>
  [[nodiscard]] constexpr Coefficients<T> coefficients(const Step&) const {
    throw InvalidState(
        "this training has no optimizer; call reduce_gradients, update what owned() returns, and call gather_weights",
        {.operation = "update_weights"});
  }
  template <class T, class V>
  static constexpr void update(const Coefficients<T>&, V&, V) {}
};

}  // namespace distx::inline DISTX_ABI
