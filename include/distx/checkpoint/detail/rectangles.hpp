// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace distx::checkpoint::detail {

using Shape = std::vector<std::uint64_t>;

/// Returns "[2, 3]".
[[nodiscard]] inline std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (const auto extent : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  return text + "]";
}

/// A box of an array that is contiguous in its row-major order.
struct Rectangle {
  Shape offsets;
  Shape extents;
  std::uint64_t begin = 0;  ///< of its first element in the array
  std::uint64_t size = 0;
};

/// Returns the rectangles that elements [begin, begin + size) of an array are: at most three, the whole rows first.
/// @pre one or two dimensions
[[nodiscard]] inline std::vector<Rectangle> rectangles_of(const Shape& shape, std::uint64_t begin, std::uint64_t size) {
  if (size == 0) return {};
  if (shape.size() == 1) return {{{begin}, {size}, begin, size}};
  const std::uint64_t columns = shape[1], end = begin + size;
  const std::uint64_t head_end = std::min(end, (begin + columns - 1) / columns * columns);
  const std::uint64_t tail_begin = std::max(head_end, end / columns * columns);
  std::vector<Rectangle> found;
  const auto add = [&](std::uint64_t from, std::uint64_t to) {
    if (from == to) return;
    const std::uint64_t row = from / columns, first = from % columns;
    const bool one_row = first != 0 || to - from < columns;
    found.push_back(
        {{row, first}, one_row ? Shape{1, to - from} : Shape{(to - from) / columns, columns}, from, to - from});
  };
  add(head_end, tail_begin);
  add(begin, head_end);
  add(tail_begin, end);
  return found;
}

/// Calls f(begin, from, size) for every contiguous run of a box: elements [begin, begin + size) of the array are
/// elements [from, from + size) of the box, in ascending order.
/// @pre the box is within the array
template <class F>
void each_run(const Shape& shape, const Shape& offsets, const Shape& extents, F&& f) {
  std::size_t inner = shape.size();  // dimensions from here on are whole
  std::uint64_t run = 1, stride = 1;
  while (inner > 0 && extents[inner - 1] == shape[inner - 1]) stride = run *= extents[--inner];
  std::uint64_t begin = 0;
  if (inner > 0) {
    --inner;
    run *= extents[inner];
    begin = offsets[inner] * stride;
    stride *= shape[inner];
  }
  // Counts through the dimensions before `inner`, whose strides follow.
  std::vector<std::uint64_t> strides(inner), at(inner);
  for (std::size_t d = inner; d-- > 0;) {
    strides[d] = stride;
    begin += offsets[d] * stride;
    stride *= shape[d];
    if (extents[d] == 0) return;
  }
  if (run == 0) return;
  for (std::uint64_t from = 0;; from += run) {
    f(begin, from, run);
    std::size_t d = inner;
    for (; d > 0; --d) {
      begin += strides[d - 1];
      if (++at[d - 1] < extents[d - 1]) break;
      begin -= extents[d - 1] * strides[d - 1];
      at[d - 1] = 0;
    }
    if (d == 0) return;
  }
}

}  // namespace distx::checkpoint::detail
