// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include "distx/core/error.hpp"

namespace distx {

/// What an optimizer is told about one update of one parameter.
struct Step {
  double learning_rate = 0;              ///< the step's, times the scale of the parameter's group
  std::uint64_t number = 1;              ///< 1 in the first update of this parameter
  std::optional<double> weight_decay{};  ///< of the parameter's group, where it sets one: instead of the optimizer's
};

namespace detail {

/// For the optimizers' `validate`: `value` is finite and in [low, high).
inline void check_range(const char* optimizer, const char* what, double value, double low, double high) {
  if (std::isfinite(value) && value >= low && value < high) return;
  std::string words = std::string(what) + " is " + std::to_string(value) + ": it must be ";
  words += std::isfinite(high) ? "at least " + std::to_string(low) + " and below " + std::to_string(high)
                               : "finite and at least " + std::to_string(low);
  throw Error(words, {.operation = optimizer});
}

}  // namespace detail

}  // namespace distx
