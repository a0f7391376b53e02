// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstddef>

#include "distx/memory/buffer.hpp"

namespace distx::detail {

/// The least multiple of a line's 64 bytes that holds so many bytes.
[[nodiscard]] constexpr std::size_t round_up_to_lines(std::size_t bytes) noexcept {
  return (bytes + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
}

/// Where part `part` of `parts` of some bytes begins; cut on lines, so that no two parts of aligned memory share one.
///
/// The parts differ by a line at most, and some are empty where there are fewer lines than parts.
/// @post aligned_part_begin(bytes, parts, parts) == bytes
[[nodiscard]] constexpr std::size_t aligned_part_begin(std::size_t bytes, int part, int parts) noexcept {
  const std::size_t lines = round_up_to_lines(bytes) / alignment_bytes;
  return std::min(bytes, lines * static_cast<std::size_t>(part) / static_cast<std::size_t>(parts) * alignment_bytes);
}

}  // namespace distx::detail
