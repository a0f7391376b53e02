// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "distx/core/span.hpp"
#include "distx/memory/operations.hpp"

namespace distx::inline DISTX_ABI::detail {

/// One of many copies within a memory space.
struct CopyPiece {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;
};

/// Copies pieces that do not overlap, in stream order: each in `add`, or, if the space has `copy_at_once(stream,
/// pieces)`, all in `finish`.
template <MemorySpace Space>
class PieceCopies {
  static constexpr bool gathers =
      requires(typename Space::stream stream, std::span<const CopyPiece> pieces) { copy_at_once(stream, pieces); };

 public:
  explicit PieceCopies(typename Space::stream stream) : stream_(stream) {}
  void add(const CopyPiece& piece) {
    if constexpr (gathers)
      pieces_.push_back(piece);
    else
      copy(stream_, Span<std::byte, Space>(piece.to, piece.bytes),
           Span<const std::byte, Space>(piece.from, piece.bytes));
  }
  void finish() {
    if constexpr (gathers) copy_at_once(stream_, std::span<const CopyPiece>(pieces_));
  }

 private:
  typename Space::stream stream_;
  std::vector<CopyPiece> pieces_{};
};

}  // namespace distx::inline DISTX_ABI::detail
