// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
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
[[nodiscard]] std::string shape_text(const std::vector<std::size_t>& shape);

/// @throws InvalidArgument unless an array of `size` elements has this shape, or it is empty
void check_shape(const std::string& name, std::size_t size, const std::vector<std::size_t>& shape);

/// @throws InvalidArgument
void check_parameter(const std::string& name, std::size_t size, const ParameterOptions& options);

/// @throws InvalidArgument
void check_same_size(const std::string& name, std::size_t weight, std::size_t gradient, const ErrorContext& context);

}  // namespace detail

}  // namespace distx::inline DISTX_ABI
