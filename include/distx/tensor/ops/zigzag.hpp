// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstddef>
#include <string>

#include "distx/core/error.hpp"

namespace distx::inline DISTX_ABI::ops {

/// The order of tokens in which every rank has equal work in `ring_attention`: sequences consist of 2 * ranks chunks,
/// and rank r has the chunks r and 2 * ranks - 1 - r. On one rank it is the order of positions.
///
/// A tensor in this order is sharded in its length as any other. Ids, targets and all that depends on a token's
/// position are permuted once, where they are read:
///
///     const ops::Zigzag order(length, mesh.size<Context>());
///     auto ids = generate<int, Shard<1, Context>>(mesh, {batch, length},
///                                                 [&](auto i) { return text[i[0]][order.position(i[1])]; });
class Zigzag {
 public:
  /// @throws InvalidArgument unless there is one rank, or several and `length` is a multiple of 2 * ranks
  Zigzag(std::size_t length, int ranks, const ErrorContext& context = {.operation = "Zigzag"})
      : ranks_(static_cast<std::size_t>(ranks)), chunk_(ranks <= 1 ? length : length / (2 * ranks_)) {
    if (ranks < 1)
      throw InvalidArgument("invalid number of ranks " + std::to_string(ranks) + ": must be at least 1", context);
    if (ranks > 1 && length != 2 * ranks_ * chunk_)
      throw InvalidArgument("invalid length " + std::to_string(length) + " of sequences on " + std::to_string(ranks) +
                                " ranks of ring attention: must be a multiple of " + std::to_string(2 * ranks) +
                                ", as each rank has two chunks of equal length; pad the sequences",
                            context);
  }

  /// Returns the position in its sequence of the token at `index`. @pre index < length
  [[nodiscard]] std::size_t position(std::size_t index) const noexcept {
    const std::size_t at = index / chunk_, rank = at / 2;
    return (at % 2 == 0 ? rank : 2 * ranks_ - 1 - rank) * chunk_ + index % chunk_;
  }

 private:
  std::size_t ranks_, chunk_;
};

}  // namespace distx::inline DISTX_ABI::ops
