// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/detail/box.hpp"

namespace distx::inline DISTX_ABI::detail {

/// A part of two tensors as runs of bytes that are contiguous in both memories, at constant steps.
struct BoxRuns {
  std::size_t to_begin = 0, from_begin = 0;  ///< in bytes, as all members
  std::size_t bytes = 0;                     ///< of each run; 0 if the part is empty
  std::size_t dimensions = 0;                ///< of the grid of runs; the last one varies fastest
  std::array<std::size_t, max_dimensions> count{}, to_step{}, from_step{};

  /// @pre both contain `part`; both are stored in row-major order
  BoxRuns(const Box& to_whole, const Box& from_whole, const Box& part, std::size_t element_bytes) noexcept
      : bytes(part.volume() == 0 ? 0 : element_bytes) {
    if (bytes == 0) return;
    to_begin = offset_in(to_whole, part) * element_bytes;
    from_begin = offset_in(from_whole, part) * element_bytes;
    std::size_t to = element_bytes, from = element_bytes;
    std::array<std::size_t, max_dimensions> counts{}, to_steps{}, from_steps{};  // the first one fastest
    for (std::size_t d = part.dimensions; d-- > 0; to *= to_whole.size[d], from *= from_whole.size[d]) {
      const std::size_t n = part.size[d];
      if (n == 1) continue;
      const std::size_t i = dimensions;
      // If the next index follows directly in both memories, it extends the runs found so far.
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

  /// Calls f(offset in `to`, offset in `from`) for each run, leaving the last `inner` dimensions to `f`.
  /// @pre inner <= dimensions, and the part is not empty
  template <class F>
  void for_each(std::size_t inner, F&& f) const {
    const std::size_t outer = dimensions - inner;
    std::array<std::size_t, max_dimensions> index{};
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

}  // namespace distx::inline DISTX_ABI::detail
