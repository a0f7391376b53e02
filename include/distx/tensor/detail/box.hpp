// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>

#include "distx/tensor/extents.hpp"

namespace distx::inline DISTX_ABI::detail {

/// A part of a tensor: in each dimension `size` indices from `begin`. The number of dimensions is a run-time value.
struct Box {
  std::size_t dimensions = 0;
  std::array<std::size_t, max_dimensions> begin{};
  std::array<std::size_t, max_dimensions> size{};

  [[nodiscard]] constexpr std::size_t volume() const noexcept {
    std::size_t elements = 1;
    for (std::size_t d = 0; d < dimensions; ++d) elements *= size[d];
    return elements;
  }
  /// The intersection; its size is zero in each dimension in which the boxes do not overlap.
  [[nodiscard]] friend constexpr Box operator&(const Box& a, const Box& b) noexcept {
    Box both{a.dimensions, {}, {}};
    for (std::size_t d = 0; d < a.dimensions; ++d) {
      both.begin[d] = std::max(a.begin[d], b.begin[d]);
      const std::size_t end = std::min(a.begin[d] + a.size[d], b.begin[d] + b.size[d]);
      both.size[d] = end > both.begin[d] ? end - both.begin[d] : 0;
    }
    return both;
  }
  friend constexpr bool operator==(const Box&, const Box&) = default;
};

/// A whole tensor of these extents.
template <std::size_t Rank>
[[nodiscard]] constexpr Box whole_box(const Extents<Rank>& extents) noexcept {
  static_assert(Rank <= max_dimensions, "distx: a tensor has at most 8 dimensions; merge some of them");
  Box box{Rank, {}, {}};
  std::copy(extents.begin(), extents.end(), box.size.begin());
  return box;
}

/// The offset of the first element of `part` in the row-major memory of `whole`. @pre `whole` contains `part`
constexpr std::size_t offset_in(const Box& whole, const Box& part) noexcept {
  std::size_t at = 0;
  for (std::size_t d = 0; d < whole.dimensions; ++d) at = at * whole.size[d] + (part.begin[d] - whole.begin[d]);
  return at;
}

/// Whether the elements of `part` are contiguous in the row-major memory of `whole`.
constexpr bool is_contiguous_in(const Box& whole, const Box& part) noexcept {
  std::size_t first = 0;  // the first dimension in which there is more than one index
  while (first < whole.dimensions && part.size[first] == 1) ++first;
  for (std::size_t d = first + 1; d < whole.dimensions; ++d)
    if (part.size[d] != whole.size[d]) return false;
  return true;
}

}  // namespace distx::inline DISTX_ABI::detail
