// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstddef>
#include <span>

#include "distx/core/span.hpp"
#include "distx/memory/operations.hpp"

namespace distx::detail {

/// One of many copies within a memory space.
struct CopyPiece {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;
};

/// Copies pieces that do not overlap, in stream order; at once if the space has `copy_at_once(stream, pieces)`.
template <MemorySpace Space>
void copy_pieces(typename Space::stream stream, std::span<const CopyPiece> pieces) {
  if constexpr (requires { copy_at_once(stream, pieces); })
    copy_at_once(stream, pieces);
  else
    for (const auto& piece : pieces)
      copy(stream, Span<std::byte, Space>(piece.to, piece.bytes),
           Span<const std::byte, Space>(piece.from, piece.bytes));
}

}  // namespace distx::detail
