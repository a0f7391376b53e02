// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstring>

#include "distx/core/space.hpp"
#include "distx/tensor/detail/box_runs.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Copies `part` between row-major memories that hold `from_whole` and `to_whole`. Other memory spaces overload it on
/// their stream.
/// @pre both contain `part`; the memories do not overlap
inline void copy_box(HostStream, std::byte* to, const Box& to_whole, const std::byte* from, const Box& from_whole,
                     const Box& part, std::size_t element_bytes) {
  const BoxRuns runs(to_whole, from_whole, part, element_bytes);
  if (runs.bytes == 0) return;
  runs.for_each(0,
                [&](std::size_t to_at, std::size_t from_at) { std::memcpy(to + to_at, from + from_at, runs.bytes); });
}

}  // namespace distx::inline DISTX_ABI::detail
