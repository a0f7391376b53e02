// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "distx/core/error.hpp"

namespace distx::inline DISTX_ABI {

/// How the optimizer treats a group of parameters: `const ParameterGroup no_decay{.weight_decay = 0.0};`
struct ParameterGroup {
  double learning_rate_scale = 1;        ///< multiplies the learning rate of each step; finite and >= 0
  std::optional<double> weight_decay{};  ///< replaces the optimizer's; finite and >= 0

  friend bool operator==(const ParameterGroup&, const ParameterGroup&) = default;
};

/// The options of one parameter; the same on every rank.
struct ParameterOptions {
  ParameterGroup group{};
  bool trainable = true;  ///< if false, the parameter is broadcast once, and then neither reduced nor updated
  int uses = 1;           ///< calls of `ready` for it in a step: 2 if two layers share it
  /// The name of its unit: at stage 3 of ZeRO, the parameters of a unit are gathered together. By default it is the
  /// parameter's name up to the last dot, such as `conv1` for `conv1.weight` and `conv1.bias`.
  std::string unit{};
  /// Whether, at stage 3, its unit is whole at all times but in calls that change weights, without a scope of
  /// `unshard`: for weights that are small, or that are read in many places.
  bool always_whole = false;
  std::size_t rows = 0;  ///< of a row-major matrix, for optimizers that treat matrices; 0 for anything else
  /// Its shape in checkpoints, row-major, such as {16, 8, 3, 3}; without it {rows, columns}, or {size}.
  std::vector<std::size_t> shape{};
};

namespace detail {

/// Returns `{16, 8, 3, 3}`.
[[nodiscard]] inline std::string shape_text(const std::vector<std::size_t>& shape) {
  std::string text;
  for (const std::size_t extent : shape) text.append(text.empty() ? "{" : ", ").append(std::to_string(extent));
  return text.empty() ? "{}" : text + "}";
}

/// @throws InvalidArgument unless an array of `size` elements has this shape, or it is empty
inline void check_shape(const std::string& name, std::size_t size, const std::vector<std::size_t>& shape) {
  if (!shape.empty() && std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>{}) != size)
    throw InvalidArgument("invalid .shape = " + shape_text(shape) + " of '" + name +
                              "': its extents must multiply to " + std::to_string(size) + " elements",
                          {.operation = "parameter"});
}

/// @throws InvalidArgument
inline void check_parameter(const std::string& name, std::size_t size, const ParameterOptions& options) {
  const auto fail = [&](const std::string& message) { throw InvalidArgument(message, {.operation = "parameter"}); };
  if (name.empty()) fail("a parameter has no name; name it, because errors refer to parameters by name");
  if (size == 0) fail("'" + name + "' has no elements; omit it");
  if (options.uses < 1) fail("invalid .uses = " + std::to_string(options.uses) + " of '" + name + "': must be >= 1");
  if (options.rows != 0 && size % options.rows != 0)
    fail("invalid .rows = " + std::to_string(options.rows) + " of '" + name + "': must divide its " +
         std::to_string(size) + " elements");
  check_shape(name, size, options.shape);
  const double scale = options.group.learning_rate_scale;
  if (!is_finite(scale) || scale < 0)
    fail("invalid .learning_rate_scale = " + std::to_string(scale) + " of '" + name + "': must be finite and >= 0");
  const double decay = options.group.weight_decay.value_or(0);
  if (!is_finite(decay) || decay < 0)
    fail("invalid .weight_decay = " + std::to_string(decay) + " of '" + name + "': must be finite and >= 0");
}

/// @throws InvalidArgument
inline void check_same_size(const std::string& name, std::size_t weight, std::size_t gradient,
                            const ErrorContext& context) {
  if (weight != gradient)
    throw InvalidArgument("'" + name + "' has " + std::to_string(weight) + " elements, but its gradient has " +
                              std::to_string(gradient) + "; they must have the same size",
                          context);
}

}  // namespace detail

}  // namespace distx::inline DISTX_ABI
