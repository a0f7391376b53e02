// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>

#include "distx/parallel/training_state.hpp"
#include "distx/tensor/detail/box_runs.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Calls f(to, from, count) for every run of elements of a part that is contiguous in the whole array, in order: it
/// begins at index `to` of the array and `from` of the part.
template <class F>
void for_each_run(const TensorPart& of, F&& f) {
  Box whole{of.shape.size(), {}, {}}, part = whole;
  std::copy(of.shape.begin(), of.shape.end(), whole.size.begin());
  std::copy(of.part_begin.begin(), of.part_begin.end(), part.begin.begin());
  std::copy(of.part_shape.begin(), of.part_shape.end(), part.size.begin());
  const BoxRuns runs(whole, part, part, 1);
  if (runs.bytes > 0) runs.for_each(0, [&](std::size_t to, std::size_t from) { f(to, from, runs.bytes); });
}

}  // namespace distx::inline DISTX_ABI::detail
