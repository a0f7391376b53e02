// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <cstddef>
#include <string>

namespace distx {

/// The extents of a tensor of so many dimensions; its elements lie row by row, the last dimension fastest.
template <std::size_t Rank>
using Extents = std::array<std::size_t, Rank>;

/// The most dimensions that a tensor has.
inline constexpr std::size_t most_dimensions = 8;

/// The number of elements; 1 for a tensor without dimensions.
template <std::size_t Rank>
[[nodiscard]] constexpr std::size_t volume(const Extents<Rank>& extents) noexcept {
  std::size_t elements = 1;
  for (const auto extent : extents) elements *= extent;
  return elements;
}

/// `2 x 3`, and `()` for a tensor without dimensions.
template <std::size_t Rank>
[[nodiscard]] std::string words_of(const Extents<Rank>& extents) {
  std::string words;
  for (const auto extent : extents) words += (words.empty() ? "" : " x ") + std::to_string(extent);
  return words.empty() ? "()" : words;
}

}  // namespace distx
