// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstring>
#include <vector>

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

[[nodiscard]] inline std::size_t volume_of(const std::vector<Box>& boxes) noexcept {
  std::size_t all = 0;
  for (const auto& box : boxes) all += box.volume();
  return all;
}
/// Copies boxes of a tensor, one after another, to `to`.
template <class Stream>
void pack_boxes(Stream stream, std::byte* to, const std::byte* from, const Box& whole, const std::vector<Box>& boxes,
                std::size_t element_bytes) {
  for (const auto& box : boxes) {
    copy_box(stream, to, box, from, whole, box, element_bytes);
    to += box.volume() * element_bytes;
  }
}
/// Copies boxes of a tensor that `from` has one after another.
template <class Stream>
void unpack_boxes(Stream stream, std::byte* to, const Box& whole, const std::byte* from, const std::vector<Box>& boxes,
                  std::size_t element_bytes) {
  for (const auto& box : boxes) {
    copy_box(stream, to, whole, from, box, box, element_bytes);
    from += box.volume() * element_bytes;
  }
}

}  // namespace distx::inline DISTX_ABI::detail
