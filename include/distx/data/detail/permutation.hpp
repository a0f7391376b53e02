// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Returns the numbers 0 to n - 1 in an order that depends on seed and epoch only, the same on every platform.
///
/// Fisher-Yates shuffle on the raw output of std::mt19937_64, which the standard specifies, unlike that of its
/// distributions and of std::shuffle.
[[nodiscard]] std::vector<std::size_t> permutation(std::size_t n, std::uint64_t seed, std::uint64_t epoch);

}  // namespace distx::inline DISTX_ABI::detail
