// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Returns such as `rank 1`, `ranks 1, 2 and 4`, `ranks 1, 2, … (90 ranks)`.
[[nodiscard]] inline std::string listed(const std::vector<int>& ranks) {
  constexpr std::size_t most = 16;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), most); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  if (ranks.size() > most) text += ", … (" + std::to_string(ranks.size()) + " ranks)";
  return text;
}
/// Returns the ranks for which `is(rank)`.
template <class Is>
[[nodiscard]] std::vector<int> ranks_where(int size, Is&& is) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank)
    if (is(rank)) ranks.push_back(rank);
  return ranks;
}
/// Returns the subject of a message: `rank 1 of 5`.
[[nodiscard]] inline std::string name_ranks(const std::vector<int>& ranks, int size) {
  return listed(ranks) + " of " + std::to_string(size);
}

}  // namespace distx::inline DISTX_ABI::detail
