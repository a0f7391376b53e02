// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <functional>
#include <numeric>

#include "distx/parallel/parameter_options.hpp"

namespace distx::inline DISTX_ABI::detail {

DISTX_INLINE std::string shape_text(const std::vector<std::size_t>& shape) {
  std::string text;
  for (const std::size_t extent : shape) text.append(text.empty() ? "{" : ", ").append(std::to_string(extent));
  return text.empty() ? "{}" : text + "}";
}

DISTX_INLINE void check_shape(const std::string& name, std::size_t size, const std::vector<std::size_t>& shape) {
  if (!shape.empty() && std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>{}) != size)
    throw InvalidArgument("invalid .shape = " + shape_text(shape) + " of '" + name +
                              "': its extents must multiply to " + std::to_string(size) + " elements",
                          {.operation = "parameter"});
}

DISTX_INLINE void check_parameter(const std::string& name, std::size_t size, const ParameterOptions& options) {
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

DISTX_INLINE void check_same_size(const std::string& name, std::size_t weight, std::size_t gradient,
                                  const ErrorContext& context) {
  if (weight != gradient)
    throw InvalidArgument("'" + name + "' has " + std::to_string(weight) + " elements, but its gradient has " +
                              std::to_string(gradient) + "; they must have the same size",
                          context);
}

}  // namespace distx::inline DISTX_ABI::detail
