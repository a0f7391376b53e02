// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstddef>
#include <random>
#include <string>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::detail::posix {

/// Returns a random name of hexadecimal digits that no other process has or can guess: it serves as a token, too.
[[nodiscard]] inline std::string random_name(std::size_t digits) {
  std::random_device random;
  std::string name;
  while (name.size() < digits) name += "0123456789abcdef"[random() % 16];
  return name;
}

}  // namespace distx::inline DISTX_ABI::detail::posix
