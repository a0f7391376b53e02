// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "distx/core/detail/shortest.hpp"
#include "distx/core/error.hpp"

namespace distx::inline DISTX_ABI {

/// The arguments of one update of one parameter, passed to an optimizer's `coefficients`.
struct Step {
  double learning_rate = 0;              ///< the step's learning rate times the scale of the parameter's group
  std::uint64_t number = 1;              ///< counts this parameter's updates from 1
  std::optional<double> weight_decay{};  ///< overrides the optimizer's if the parameter's group sets it
};

namespace detail {

/// Checks a number that the user passes to `operation`.
/// @throws InvalidArgument unless `value` is finite and in [low, high)
inline void check_range(const char* operation, const char* what, double value, double low, double high) {
  if (is_finite(value) && value >= low && value < high) return;
  throw InvalidArgument("invalid " + std::string(what) + " " + shortest(value) + ": must be " +
                            (is_finite(high) ? "in [" + shortest(low) + ", " + shortest(high) + ")"
                                             : "finite and at least " + shortest(low)),
                        {.operation = operation});
}

/// @throws InvalidArgument unless `epsilon` is finite and positive
inline void check_epsilon(const char* optimizer, double epsilon) {
  if (epsilon > 0 && is_finite(epsilon)) return;
  throw InvalidArgument("invalid epsilon " + shortest(epsilon) + ": must be finite and above 0",
                        {.operation = optimizer});
}

}  // namespace detail

}  // namespace distx::inline DISTX_ABI
