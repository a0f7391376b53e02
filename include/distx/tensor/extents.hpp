// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <cstddef>
#include <string>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI {

/// The extents of a tensor of `Rank` dimensions. Elements are stored in row-major order: the last dimension is
/// contiguous.
template <std::size_t Rank>
using Extents = std::array<std::size_t, Rank>;

/// Returns the number of elements, which is the product of the extents; 1 for a tensor of rank 0.
template <std::size_t Rank>
[[nodiscard]] constexpr std::size_t volume(const Extents<Rank>& extents) noexcept {
  std::size_t elements = 1;
  for (const auto extent : extents) elements *= extent;
  return elements;
}

namespace detail {

inline constexpr std::size_t max_dimensions = 8;

/// `2 x 3`, or `()` for a tensor of rank 0.
template <std::size_t Rank>
[[nodiscard]] std::string to_string(const Extents<Rank>& extents) {
  std::string text;
  for (const auto extent : extents) text += (text.empty() ? "" : " x ") + std::to_string(extent);
  return text.empty() ? "()" : text;
}

}  // namespace detail

}  // namespace distx::inline DISTX_ABI
