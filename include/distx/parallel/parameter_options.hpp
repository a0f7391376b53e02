// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cmath>
#include <optional>
#include <string>

#include "distx/core/error.hpp"

namespace distx {

/// How the optimizer treats some of the parameters: `const ParameterGroup no_decay{.weight_decay = 0.0};`
struct ParameterGroup {
  double learning_rate_scale = 1;
  std::optional<double> weight_decay{};  ///< instead of the optimizer's

  friend bool operator==(const ParameterGroup&, const ParameterGroup&) = default;
};

/// What may be said of one parameter.
struct ParameterOptions {
  ParameterGroup group{};
  bool trainable = true;  ///< where false: broadcast at the start, then neither reduced nor updated
  int uses = 1;           ///< how often `ready` is called for it in a step: 2 where two layers share it
  /// At stage 3 parameters of one unit are gathered together. By default those whose names agree up to the last dot:
  /// `conv1.weight` and `conv1.bias`; a name without a dot is a unit of its own.
  std::optional<int> unit{};
  std::size_t rows = 0;  ///< of a matrix, row by row, for optimizers that treat matrices; 0: a vector
};

namespace detail {

inline void check_parameter(const std::string& name, std::size_t size, const ParameterOptions& options) {
  const auto fail = [&](const std::string& words) { throw MismatchError(words, {.operation = "parameter"}); };
  if (name.empty()) fail("a parameter has no name: name it, since errors and checkpoints speak of it by name");
  if (size == 0) fail("'" + name + "' has no elements: leave it out");
  if (options.uses < 1)
    fail("'" + name + "' has .uses = " + std::to_string(options.uses) + ": it is 1, or 2 where two layers share it");
  if (options.rows != 0 && size % options.rows != 0)
    fail("'" + name + "' has .rows = " + std::to_string(options.rows) + ", which does not divide its " +
         std::to_string(size) + " elements");
  const double scale = options.group.learning_rate_scale;
  if (!std::isfinite(scale) || scale < 0)
    fail("the group of '" + name + "' has .learning_rate_scale = " + std::to_string(scale) +
         ": it must be finite and at least 0");
  const double decay = options.group.weight_decay.value_or(0);
  if (!std::isfinite(decay) || decay < 0)
    fail("the group of '" + name + "' has .weight_decay = " + std::to_string(decay) +
         ": it must be finite and at least 0");
}

}  // namespace detail

}  // namespace distx
