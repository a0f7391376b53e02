// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstddef>

#include "distx/memory/buffer.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Rounds a number of bytes up to whole cache lines of 64 bytes.
[[nodiscard]] constexpr std::size_t round_up_to_lines(std::size_t bytes) noexcept {
  return (bytes + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
}

/// Returns where part `part` of `parts` begins if `bytes` bytes are partitioned at cache lines.
///
/// The parts differ by at most one line; some are empty if there are fewer lines than parts.
/// @post aligned_part_begin(bytes, parts, parts) == bytes
[[nodiscard]] constexpr std::size_t aligned_part_begin(std::size_t bytes, int part, int parts) noexcept {
  const std::size_t lines = round_up_to_lines(bytes) / alignment_bytes;
  return std::min(bytes, lines * static_cast<std::size_t>(part) / static_cast<std::size_t>(parts) * alignment_bytes);
}

}  // namespace distx::inline DISTX_ABI::detail
