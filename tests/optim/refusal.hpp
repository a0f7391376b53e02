// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <limits>
#include <string>

#include <distx/optim/optimizer.hpp>

namespace optim_tests {

inline constexpr double inf = std::numeric_limits<double>::infinity();
inline constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

/// Whether the optimizer is refused in these words; without words: whether it is accepted.
template <class Optimizer>
bool refused(const Optimizer& optimizer, const std::string& words = "") {
  try {
    distx::detail::validate_optimizer(optimizer);
  } catch (const distx::Error& error) {
    return !words.empty() && std::string(error.what()).find(words) != std::string::npos;
  }
  return words.empty();
}

}  // namespace optim_tests
