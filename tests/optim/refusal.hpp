// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <limits>
#include <string>

#include <distx/optim/optimizer.hpp>

namespace optim_tests {

inline constexpr double inf = std::numeric_limits<double>::infinity();
inline constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

/// Returns whether validation throws InvalidArgument with this text; without a text, whether it accepts the optimizer.
template <class Optimizer>
bool refused(const Optimizer& optimizer, const std::string& text = "") {
  try {
    distx::detail::validate_optimizer(optimizer);
  } catch (const distx::InvalidArgument& error) {
    return !text.empty() && std::string(error.what()).find(text) != std::string::npos;
  }
  return text.empty();
}

}  // namespace optim_tests
