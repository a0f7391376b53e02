// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/nccl/detail/movement.hpp"

// The way of the reductions that NCCL does not do: each rank gets all ranks' parts of one block, and reduces them on
// the host, in rank order; all of it in the order of the stream.
namespace distx::nccl {

/// Blocks cut at n*r/N, in bytes.
struct CutBlocks {
  std::size_t count;
  int ranks;
  std::size_t element_bytes;

  [[nodiscard]] std::size_t offset(int rank) const noexcept {
    const auto n = static_cast<std::size_t>(ranks), r = static_cast<std::size_t>(rank);
    return (count / n * r + count % n * r / n) * element_bytes;
  }
  [[nodiscard]] std::size_t bytes(int rank) const noexcept { return offset(rank + 1) - offset(rank); }
};

/// Puts the reduction of all ranks' parts of this rank's block to `to`.
template <Collective Call, class AllBlocks>
void reduce_own_block(Channel& ch, const Call& c, const std::byte* send, const AllBlocks& blocks, std::byte* to) {
  if (open_group != nullptr)
    throw MismatchError(
        "this op on these elements is reduced on the host, in several steps: start it outside the "
        "NcclGroup",
        ch.self.context(c));
  const auto ranks = static_cast<std::size_t>(ch.self.size);
  const std::size_t bytes = blocks.bytes(ch.self.rank);
  std::byte* const parts = ch.workspace(bytes * ranks);
  // Every rank's part of the own block, side by side.
  exchange(ch, c, send, blocks, parts, Blocks{{}, bytes, 1});
  if (bytes == 0) return;
  std::byte* const host = ch.pinned(bytes * ranks);
  ch.copy(host, parts, bytes * ranks, c);
  HostReduction& reduction = *ch.reduction;
  reduction.op = c.op;
  reduction.blocks = host;
  reduction.block_bytes = bytes;
  reduction.count = bytes / c.send.element_bytes();
  reduction.sources.resize(ranks);
  reduction.error = nullptr;
  cuda::detail::check(cudaLaunchHostFunc(ch.stream.native_handle(), &HostReduction::run, &reduction),
                      "cudaLaunchHostFunc", ch.self.context(c));
  ch.copy(to, host, bytes, c);
}

}  // namespace distx::nccl
