// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/training_state.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Calls f(to, from, count) for every run of elements of a part that is contiguous in the whole array, in order: it
/// begins at index `to` of the array and `from` of the part.
template <class F>
void for_each_run(const TensorPart& of, F&& f) {
  std::size_t size = 1, run = 1, all = 1;  // of the whole array, of a run, of the part
  for (std::size_t d = of.shape.size(); d-- > 0;) {
    if (run == size) run *= of.part_shape[d];
    size *= of.shape[d];
    all *= of.part_shape[d];
  }
  for (std::size_t from = 0; from < all; from += run) {
    std::size_t to = 0, stride = 1, left = from;  // the index in the part, from the last dimension on
    for (std::size_t d = of.shape.size(); d-- > 0; left /= of.part_shape[d], stride *= of.shape[d])
      to += (of.part_begin[d] + left % of.part_shape[d]) * stride;
    f(to, from, run);
  }
}

}  // namespace distx::inline DISTX_ABI::detail
