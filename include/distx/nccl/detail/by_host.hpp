// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/nccl/detail/movement.hpp"

// Reductions that NCCL does not have: each rank receives all ranks' parts of one block and reduces them on the host in
// rank order, stream-ordered.
namespace distx::inline DISTX_ABI::nccl::detail {

/// Blocks with boundaries at n*r/N elements, in bytes.
struct EvenByteBlocks {
  std::size_t count;
  int ranks;
  std::size_t element_bytes;

  [[nodiscard]] std::size_t offset(int rank) const noexcept {
    const auto n = static_cast<std::size_t>(ranks), r = static_cast<std::size_t>(rank);
    return (count / n * r + count % n * r / n) * element_bytes;
  }
  [[nodiscard]] std::size_t bytes(int rank) const noexcept { return offset(rank + 1) - offset(rank); }
};

/// Reduces all ranks' parts of this rank's block into `to`.
template <class AllBlocks>
void reduce_own_block(CommStream& ch, const calls::Call<Cuda>& c, const ErrorContext& where, const AllBlocks& blocks,
                      std::byte* to) {
  if (open_group != nullptr)
    throw InvalidState(
        "this op on these elements is reduced on the host, in several steps; start it outside the NcclGroup", where);
  if (cuda::detail::capturing(ch.stream))
    throw InvalidState(
        "this op on these elements is reduced on the host, which a CUDA graph cannot have; start it outside the "
        "capture",
        where);
  const auto ranks = static_cast<std::size_t>(ch.self.size);
  const std::size_t bytes = blocks.bytes(ch.self.rank);
  std::byte* const parts = ch.workspace(bytes * ranks);
  // Every rank's part of this rank's block, in rank order.
  exchange(ch, where, c.send.bytes(), blocks, parts, ByteBlocks{{}, bytes, 1});
  if (bytes == 0) return;
  std::byte* const host = ch.pinned(bytes * ranks);
  ch.copy(host, parts, bytes * ranks, where);
  HostReduction& reduction = *ch.reduction;
  reduction.op = c.op;
  reduction.blocks = host;
  reduction.block_bytes = bytes;
  reduction.count = bytes / c.send.element_bytes();
  reduction.sources.resize(ranks);
  reduction.error = nullptr;
  ch.settle_before("cudaLaunchHostFunc", where);
  cuda::detail::check(cudaLaunchHostFunc(ch.stream.native_handle(), &HostReduction::run, &reduction),
                      "cudaLaunchHostFunc", where);
  ch.copy(to, host, bytes, where);
}

}  // namespace distx::inline DISTX_ABI::nccl::detail
