// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/detail/box.hpp"

namespace distx::detail {

/// How a part of two tensors lies in their memories: runs of bytes side by side in both, at equal steps.
struct BoxRuns {
  std::size_t to_begin = 0, from_begin = 0;  ///< in bytes, as all here
  std::size_t bytes = 0;                     ///< of a run; 0 where there is nothing
  std::size_t dimensions = 0;                ///< in which the runs follow one another, the last one fastest
  std::array<std::size_t, most_dimensions> count{}, to_step{}, from_step{};

  /// @pre part lies in both, which are held row by row
  BoxRuns(const Box& to_whole, const Box& from_whole, const Box& part, std::size_t element_bytes) noexcept
      : bytes(part.volume() == 0 ? 0 : element_bytes) {
    if (bytes == 0) return;
    to_begin = place_in(to_whole, part) * element_bytes;
    from_begin = place_in(from_whole, part) * element_bytes;
    std::size_t to = element_bytes, from = element_bytes;
    std::array<std::size_t, most_dimensions> counts{}, to_steps{}, from_steps{};  // the first one fastest
    for (std::size_t d = part.dimensions; d-- > 0; to *= to_whole.size[d], from *= from_whole.size[d]) {
      const std::size_t n = part.size[d];
      if (n == 1) continue;
      const std::size_t i = dimensions;
      // One index further is where what there is already ends, in both: it goes on.
      const std::size_t to_end = i == 0 ? bytes : to_steps[i - 1] * counts[i - 1];
      const std::size_t from_end = i == 0 ? bytes : from_steps[i - 1] * counts[i - 1];
      if (to == to_end && from == from_end) {
        (i == 0 ? bytes : counts[i - 1]) *= n;
        continue;
      }
      counts[i] = n;
      to_steps[i] = to;
      from_steps[i] = from;
      ++dimensions;
    }
    for (std::size_t i = 0; i < dimensions; ++i) {
      count[i] = counts[dimensions - 1 - i];
      to_step[i] = to_steps[dimensions - 1 - i];
      from_step[i] = from_steps[dimensions - 1 - i];
    }
  }

  /// Calls f(where in one memory, where in the other) for each run, without the last `inner` dimensions.
  /// @pre inner <= dimensions, and there is something
  template <class F>
  void for_each(std::size_t inner, F&& f) const {
    const std::size_t outer = dimensions - inner;
    std::array<std::size_t, most_dimensions> index{};
    std::size_t to = to_begin, from = from_begin;
    while (true) {
      f(to, from);
      std::size_t d = outer;
      while (true) {
        if (d == 0) return;
        --d;
        to += to_step[d];
        from += from_step[d];
        if (++index[d] < count[d]) break;
        to -= to_step[d] * count[d];
        from -= from_step[d] * count[d];
        index[d] = 0;
      }
    }
  }
};

}  // namespace distx::detail
