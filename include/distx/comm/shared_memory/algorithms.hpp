// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/shared_memory/collective_execution.hpp"

// One rank's part in one round of a collective, on the memory that all ranks expose. Reductions combine operands in
// rank order, so the result depends only on the operands.
namespace distx::inline DISTX_ABI::detail::shared_memory {

/// All-reduce and reduce: every rank reduces its slice for all receivers; small operands are reduced by each receiver.
inline void reduce_slice(CollectiveExecution& x, std::size_t round) {
  const int me = x.self.rank;
  const std::size_t bytes = x.piece(me, me, round);
  const ByteRange slice =
      x.all_inlined() ? ByteRange{0, x.receives_reduced(me) ? bytes : 0} : slice_of(bytes, me, x.self.size);
  auto& targets = x.workspace.targets;
  targets.clear();
  for (int r = 0; r < x.self.size; ++r) {
    if (!x.receives_reduced(r) || (r != me && x.all_inlined())) continue;
    std::byte* const receive = r == me ? x.own_receive() : x.peer(r).receive;
    // If the rank's memory is not accessible, writes to its staging buffer, whose copy of this slice has just been
    // read.
    targets.push_back(slice.offset + (receive != nullptr ? receive + x.offset(round) : x.staging_of(r, round)));
  }
  if (slice.bytes != 0) x.reduce(slice.offset, slice.bytes, round);
}

/// Copies this rank's results from its staging buffer, if other ranks cannot access its memory.
inline void collect(CollectiveExecution& x, std::size_t round) {
  const int me = x.self.rank;
  if (!x.receives_reduced(me) || x.peer(me).receive != nullptr) return;
  const std::size_t bytes = x.piece(me, me, round);
  for (int r = 0; r < x.self.size; ++r) {
    const ByteRange slice = slice_of(bytes, r, x.self.size);
    if (r != me)
      copy_bytes(x.own_receive() + x.offset(round) + slice.offset, x.staging_of(me, round) + slice.offset, slice.bytes);
  }
}

inline void reduce_own_block(CollectiveExecution& x, std::size_t round) {
  const int me = x.self.rank;
  const std::size_t bytes = x.piece(me, me, round);
  if (bytes == 0) return;
  if (x.call.consumer != nullptr) {
    return x.call.consumer->consume(x.offset(round) / x.width, x.operands(0, round), bytes / x.width);
  }
  x.workspace.targets.assign(1, x.own_receive() + x.offset(round));
  x.reduce(0, bytes, round);
}

/// Copies the root's part of what moves between it and the other ranks, or another rank's part. `offset(r)` is where
/// the block of rank r begins in its receiver's buffer. Returns a predicate: whether the block of a rank was copied in
/// two parts.
template <class Offset>
auto divide_copies(CollectiveExecution& x, std::size_t round, Offset&& offset) {
  const int me = x.self.rank, root = x.call.root;
  const auto divided = [&x, round, root](int r) {
    return r != root && (x.traits.root_sends ? x.divides(root, r, round) : x.divides(r, root, round));
  };
  for (int r = me == root ? 0 : me; r < (me == root ? x.self.size : me + 1); ++r) {
    if (!divided(r)) continue;
    if (x.traits.root_sends)
      x.copy_part(root, r, round, offset(r));
    else
      x.copy_part(r, root, round, offset(r));
  }
  return divided;
}

/// If all ranks can access the memory of the receivers and of the root, every rank, including the root, copies its
/// slice.
inline void broadcast_part(CollectiveExecution& x, std::size_t round) {
  const int me = x.self.rank, root = x.call.root;
  const auto divided = divide_copies(x, round, [&](int) { return x.offset(round); });
  const std::size_t bytes = x.piece(root, me, round);
  for (int r = 0; r < x.self.size; ++r) {
    std::byte* const receive = r == me ? x.own_receive() : x.peer(r).receive;
    if (r == root || receive == nullptr || divided(r)) continue;
    const bool together = !x.all_inlined() && !x.staged() && x.peer(r).receive != nullptr;
    if (!together && r != me) continue;
    const ByteRange part = together ? slice_of(bytes, me, x.self.size) : ByteRange{0, bytes};
    x.take(receive + x.offset(round) + part.offset, root, me, round, part);
  }
}

inline void gather_all_blocks(CollectiveExecution& x, std::size_t round) {
  for (int r = 0; r < x.self.size; ++r)
    x.take(x.own_receive() + block_offset(x.call.counts, x.call.send.size(), r) * x.width + x.offset(round), r,
           x.self.rank, round);
}

inline void gather_part(CollectiveExecution& x, std::size_t round) {
  const int me = x.self.rank, root = x.call.root;
  const PeerView& to = x.peer(root);
  const auto block = [&](int r) { return block_offset(to.send_counts, to.send_count, r) * x.width + x.offset(round); };
  const auto divided = divide_copies(x, round, block);
  // Each rank in the rounds copies its own block, if it is small, only where that spreads the work: writing to lines
  // that another core has written takes several times as long as reading them.
  const bool spreads = x.self.size != 2 || x.peer(1 - root).send == nullptr;
  const bool together = to.receive != nullptr && !x.all_inlined() && spreads;
  if (together && me != root && !divided(me))
    copy_bytes(to.receive + block(me), x.source(me, root, round), x.piece(me, root, round));
  if (me != root) return;
  for (int r = 0; r < x.self.size; ++r)
    if (r == me || !(divided(r) || (together && x.joins_rounds(r)))) x.take(x.own_receive() + block(r), r, me, round);
}

inline void scatter_part(CollectiveExecution& x, std::size_t round) {
  const int me = x.self.rank, root = x.call.root;
  const auto divided = divide_copies(x, round, [&](int) { return x.offset(round); });
  if (!divided(me)) x.take(x.own_receive() + x.offset(round), root, me, round);
}

/// Swaps bytes through a buffer that stays in the cache: memcpy moves wide blocks.
inline void swap_bytes(std::byte* a, std::byte* b, std::size_t bytes) noexcept {
  alignas(alignment_bytes) std::byte kept[2048];
  while (bytes != 0) {
    const std::size_t part = std::min(bytes, sizeof kept);
    std::memcpy(kept, a, part);
    std::memcpy(a, b, part);
    std::memcpy(b, kept, part);
    a += part, b += part, bytes -= part;
  }
}

inline void exchange_blocks(CollectiveExecution& x, std::size_t round) {
  const auto& c = x.call;
  const int me = x.self.rank;
  const auto equal = c.send.size() / static_cast<std::size_t>(x.self.size);
  if (c.counts.empty() && c.send.data() == c.receive.data() && !x.staged() && !x.peer(me).inlined) {
    // In place: of the two blocks of each pair of ranks, the lower rank swaps the first half and the other the second.
    for (int r = 0; r < x.self.size; ++r) {
      if (r == me) continue;
      const ByteRange half = slice_of(equal * x.width, me < r ? 0 : 1, 2);
      swap_bytes(x.own_receive() + static_cast<std::size_t>(r) * equal * x.width + half.offset,
                 x.peer(r).receive + static_cast<std::size_t>(me) * equal * x.width + half.offset, half.bytes);
    }
    return;
  }
  for (int r = 0; r < x.self.size; ++r)
    x.take(x.own_receive() + block_offset(c.receive_counts, equal, r) * x.width + x.offset(round), r, me, round);
}

inline void run_round(CollectiveExecution& x, std::size_t round) {
  using enum CollectiveKind;
  switch (x.call.kind) {
    case all_reduce:
    case reduce:
      return reduce_slice(x, round);
    case reduce_scatter:
      return reduce_own_block(x, round);
    case broadcast:
      return broadcast_part(x, round);
    case all_gather:
      return gather_all_blocks(x, round);
    case gather:
      return gather_part(x, round);
    case scatter:
      return scatter_part(x, round);
    case all_to_all:
      return exchange_blocks(x, round);
    case send:
    case receive:
    case send_receive:
    case barrier:
      break;
  }
}

}  // namespace distx::inline DISTX_ABI::detail::shared_memory
