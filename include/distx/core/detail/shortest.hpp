// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <charconv>
#include <string>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Returns the fewest digits that distinguish a number from every other one.
inline std::string shortest(double number) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, number).ptr};
}

}  // namespace distx::inline DISTX_ABI::detail
