// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstring>
#include <utility>

#include "distx/core/space.hpp"
#include "distx/tensor/box.hpp"

namespace distx {

/// Copies `part` from one memory to another, which hold `from_whole` and `to_whole` row by row. An operation of the
/// host's memory; another space offers the same with its own stream.
/// @pre part lies in both; the memories do not overlap
inline void copy_box(HostStream, std::byte* to, const Box& to_whole, const std::byte* from, const Box& from_whole,
                     const Box& part, std::size_t element_bytes) {
  if (part.volume() == 0) return;
  // The last dimensions of which both memories have all, and the one before them, are one run.
  std::size_t outer = part.dimensions, run = element_bytes;
  while (outer > 0) {
    --outer;
    run *= part.size[outer];
    if (part.size[outer] != to_whole.size[outer] || part.size[outer] != from_whole.size[outer]) break;
  }
  std::array<std::size_t, most_dimensions> to_stride{}, from_stride{};
  std::size_t to_step = element_bytes, from_step = element_bytes;
  for (std::size_t d = part.dimensions; d-- > 0;) {
    to_stride[d] = std::exchange(to_step, to_step * to_whole.size[d]);
    from_stride[d] = std::exchange(from_step, from_step * from_whole.size[d]);
  }
  to += detail::place_in(to_whole, part) * element_bytes;
  from += detail::place_in(from_whole, part) * element_bytes;
  std::array<std::size_t, most_dimensions> index{};
  while (true) {
    std::memcpy(to, from, run);
    std::size_t d = outer;
    while (d > 0) {
      --d;
      to += to_stride[d];
      from += from_stride[d];
      if (++index[d] < part.size[d]) break;
      to -= to_stride[d] * part.size[d];
      from -= from_stride[d] * part.size[d];
      index[d] = 0;
      if (d == 0) return;
    }
    if (outer == 0) return;
  }
}

}  // namespace distx
