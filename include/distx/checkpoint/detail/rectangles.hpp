// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::checkpoint::detail {

using Shape = std::vector<std::uint64_t>;

/// Returns "[2, 3]".
[[nodiscard]] inline std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (const auto extent : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  return text + "]";
}

/// A part of an array: `extents` indices from `offsets` on, in each dimension.
struct ArrayBox {
  Shape offsets;
  Shape extents;

  [[nodiscard]] std::uint64_t volume() const noexcept {
    std::uint64_t elements = 1;
    for (const auto extent : extents) elements *= extent;
    return elements;
  }
  /// Returns the intersection, of which the volume is 0 if the boxes do not overlap.
  [[nodiscard]] friend ArrayBox operator&(const ArrayBox& a, const ArrayBox& b) {
    ArrayBox both = a;
    for (std::size_t d = 0; d < a.offsets.size(); ++d) {
      both.offsets[d] = std::max(a.offsets[d], b.offsets[d]);
      const auto end = std::min(a.offsets[d] + a.extents[d], b.offsets[d] + b.extents[d]);
      both.extents[d] = end > both.offsets[d] ? end - both.offsets[d] : 0;
    }
    return both;
  }
};

/// A box of an array that is contiguous in its row-major order.
struct Rectangle {
  ArrayBox box;
  std::uint64_t begin = 0;  ///< of its first element in the array
  std::uint64_t size = 0;
};

/// Returns the rectangles that elements [begin, begin + size) of an array are, the whole rows first: one of a vector,
/// at most three of a matrix, at most 2n - 1 of an array of n dimensions.
/// @pre the array has these elements
[[nodiscard]] inline std::vector<Rectangle> rectangles_of(const Shape& shape, std::uint64_t begin, std::uint64_t size) {
  std::vector<Rectangle> found;
  if (shape.empty() && size > 0) found.push_back({{}, begin, size});
  if (shape.empty()) return found;
  // Adds elements [from, to) of the indices `prefix` in the dimensions before this one.
  const auto add = [&](const auto& self, Shape& prefix, std::uint64_t before, std::uint64_t from,
                       std::uint64_t to) -> void {
    if (from == to) return;
    const std::size_t dimension = prefix.size();
    std::uint64_t row = 1;
    for (std::size_t d = dimension + 1; d < shape.size(); ++d) row *= shape[d];
    const auto part_of_row = [&](std::uint64_t first, std::uint64_t last) {
      if (first == last) return;
      prefix.push_back(first / row);
      self(self, prefix, before + first / row * row, first % row, first % row + (last - first));
      prefix.pop_back();
    };
    const std::uint64_t head_end = std::min(to, (from + row - 1) / row * row);
    const std::uint64_t tail_begin = std::max(head_end, to / row * row);
    if (head_end != tail_begin) {
      Rectangle whole{{prefix, Shape(dimension, 1)}, before + head_end, tail_begin - head_end};
      whole.box.offsets.push_back(head_end / row);
      whole.box.extents.push_back((tail_begin - head_end) / row);
      for (std::size_t d = dimension + 1; d < shape.size(); ++d) {
        whole.box.offsets.push_back(0);
        whole.box.extents.push_back(shape[d]);
      }
      found.push_back(std::move(whole));
    }
    part_of_row(from, head_end);
    part_of_row(tail_begin, to);
  };
  Shape prefix;
  add(add, prefix, 0, begin, begin + size);
  return found;
}

/// Calls f(at, from, size) for every run of `common` that is contiguous in the row-major memories of two boxes:
/// elements [at, at + size) of `a` are elements [from, from + size) of `b`.
/// @pre both contain `common`
template <class F>
void each_common_run(const ArrayBox& common, const ArrayBox& a, const ArrayBox& b, F&& f) {
  const std::uint64_t volume = common.volume();
  if (volume == 0) return;
  std::size_t inner = common.extents.size();  // dimensions from here on are whole in both
  std::uint64_t run = 1;
  while (inner > 0 && common.extents[inner - 1] == a.extents[inner - 1] &&
         common.extents[inner - 1] == b.extents[inner - 1])
    run *= common.extents[--inner];
  if (inner > 0) run *= common.extents[--inner];
  Shape index = common.offsets;
  const auto offset_in = [&](const ArrayBox& box) {
    std::uint64_t at = 0;
    for (std::size_t d = 0; d < index.size(); ++d) at = at * box.extents[d] + (index[d] - box.offsets[d]);
    return at;
  };
  for (std::uint64_t done = 0; done < volume; done += run) {
    f(offset_in(a), offset_in(b), run);
    for (std::size_t d = inner; d-- > 0;) {
      if (++index[d] < common.offsets[d] + common.extents[d]) break;
      index[d] = common.offsets[d];
    }
  }
}

}  // namespace distx::inline DISTX_ABI::checkpoint::detail
