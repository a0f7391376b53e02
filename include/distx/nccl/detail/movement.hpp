// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <functional>

#include "distx/nccl/detail/comm_stream.hpp"

// The collectives that move elements, as bytes: NCCL's own if all blocks are equal, else messages in one group.
//
// Gather and scatter are always messages: only the root knows whether the blocks are equal, and NCCL's own calls have
// to be made by all ranks.
namespace distx::nccl::detail {

using ConstBytes = Span<const AnyElement, Cuda>;
using Bytes = Span<AnyElement, Cuda>;

/// The offset and size of each rank's block, in bytes.
struct ByteBlocks {
  calls::Counts counts;
  std::size_t equal;
  std::size_t element_bytes;

  [[nodiscard]] std::size_t offset(int rank) const noexcept {
    return calls::block_offset(counts, equal, rank) * element_bytes;
  }
  [[nodiscard]] std::size_t bytes(int rank) const noexcept {
    return calls::block_count(counts, equal, rank) * element_bytes;
  }
};

/// @pre in a group
template <calls::Collective Call>
void send_bytes(CommStream& ch, const std::byte* from, std::size_t bytes, int to, const Call& c) {
  if (bytes != 0) ch.check(ncclSend(from, bytes, ncclUint8, to, ch.comm(), ch.stream.native_handle()), "ncclSend", c);
}
/// @pre in a group
template <calls::Collective Call>
void receive_bytes(CommStream& ch, std::byte* to, std::size_t bytes, int from, const Call& c) {
  if (bytes != 0) ch.check(ncclRecv(to, bytes, ncclUint8, from, ch.comm(), ch.stream.native_handle()), "ncclRecv", c);
}

/// Whether counts, which are the same on every rank, differ between blocks.
[[nodiscard]] inline bool uneven(calls::Counts counts) noexcept {
  return std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) != counts.end();
}

/// Sends every other rank its block of one buffer and receives its block into another; this rank's block is copied.
template <calls::Collective Call, class SendBlocks, class ReceiveBlocks>
void exchange(CommStream& ch, const Call& c, const std::byte* send, const SendBlocks& sent, std::byte* receive,
              const ReceiveBlocks& received) {
  const int me = ch.self.rank;
  ch.copy(receive + received.offset(me), send + sent.offset(me), sent.bytes(me), c);
  if (ch.self.size == 1) return;
  ch.grouped(c, [&] {
    for (int rank = 0; rank < ch.self.size; ++rank) {
      if (rank == me) continue;
      send_bytes(ch, send + sent.offset(rank), sent.bytes(rank), rank, c);
      receive_bytes(ch, receive + received.offset(rank), received.bytes(rank), rank, c);
    }
  });
}

/// Sends this rank's block to every rank and receives theirs.
template <calls::Collective Call, class AllBlocks>
void gather_blocks(CommStream& ch, const Call& c, const std::byte* own, std::byte* receive, const AllBlocks& blocks) {
  const int me = ch.self.rank;
  ch.copy(receive + blocks.offset(me), own, blocks.bytes(me), c);
  if (ch.self.size == 1) return;
  ch.grouped(c, [&] {
    for (int rank = 0; rank < ch.self.size; ++rank) {
      if (rank == me) continue;
      send_bytes(ch, own, blocks.bytes(me), rank, c);
      receive_bytes(ch, receive + blocks.offset(rank), blocks.bytes(rank), rank, c);
    }
  });
}

inline void issue(CommStream& ch, const calls::Broadcast<AnyElement, Cuda>& c) {
  if (c.buffer.empty()) return;
  ch.check(ncclBroadcast(c.buffer.data(), c.buffer.data(), c.buffer.size_bytes(), ncclUint8, c.root, ch.comm(),
                         ch.stream.native_handle()),
           "ncclBroadcast", c);
}

inline void issue(CommStream& ch, const calls::AllGather<AnyElement, Cuda>& c) {
  if (c.receive.empty()) return;
  if (uneven(c.counts))
    return gather_blocks(ch, c, c.send.bytes(), c.receive.bytes(), ByteBlocks{c.counts, 0, c.send.element_bytes()});
  ch.check(ncclAllGather(c.send.data(), c.receive.data(), c.send.size_bytes(), ncclUint8, ch.comm(),
                         ch.stream.native_handle()),
           "ncclAllGather", c);
}

/// @return whether this NCCL has the call
template <class Comm>
bool all_to_all(Comm comm, CommStream& ch, const calls::AllToAll<AnyElement, Cuda>& c, const void* send,
                std::size_t bytes) {
  if constexpr (HasAllToAll<Comm>) {
    ch.check(ncclAlltoAll(send, c.receive.data(), bytes, ncclUint8, comm, ch.stream.native_handle()), "ncclAlltoAll",
             c);
    return true;
  }
  return false;
}

inline void issue(CommStream& ch, const calls::AllToAll<AnyElement, Cuda>& c) {
  if (c.send.empty() && c.receive.empty()) return;
  const std::byte* send = c.send.bytes();
  if (send == c.receive.bytes()) {
    std::byte* const kept = ch.workspace(c.send.size_bytes());
    ch.copy(kept, send, c.send.size_bytes(), c);
    send = kept;
  }
  const std::size_t equal = c.send.size() / static_cast<std::size_t>(ch.self.size);
  const std::size_t element_bytes = c.send.element_bytes();
  if (c.send_counts.empty() && all_to_all(ch.comm(), ch, c, send, equal * element_bytes)) return;
  exchange(ch, c, send, ByteBlocks{c.send_counts, equal, element_bytes}, c.receive.bytes(),
           ByteBlocks{c.receive_counts, equal, element_bytes});
}

inline void issue(CommStream& ch, const calls::Gather<AnyElement, Cuda>& c) {
  if (ch.self.rank != c.root) {
    ch.grouped(c, [&] { send_bytes(ch, c.send.bytes(), c.send.size_bytes(), c.root, c); });
    return;
  }
  const ByteBlocks blocks{c.counts, c.send.size(), c.send.element_bytes()};
  ch.copy(c.receive.bytes() + blocks.offset(c.root), c.send.bytes(), c.send.size_bytes(), c);
  ch.grouped(c, [&] {
    for (int rank = 0; rank < ch.self.size; ++rank)
      if (rank != c.root) receive_bytes(ch, c.receive.bytes() + blocks.offset(rank), blocks.bytes(rank), rank, c);
  });
}

inline void issue(CommStream& ch, const calls::Scatter<AnyElement, Cuda>& c) {
  if (ch.self.rank != c.root) {
    ch.grouped(c, [&] { receive_bytes(ch, c.receive.bytes(), c.receive.size_bytes(), c.root, c); });
    return;
  }
  const ByteBlocks blocks{c.counts, c.receive.size(), c.receive.element_bytes()};
  ch.copy(c.receive.bytes(), c.send.bytes() + blocks.offset(c.root), c.receive.size_bytes(), c);
  ch.grouped(c, [&] {
    for (int rank = 0; rank < ch.self.size; ++rank)
      if (rank != c.root) send_bytes(ch, c.send.bytes() + blocks.offset(rank), blocks.bytes(rank), rank, c);
  });
}

}  // namespace distx::nccl::detail
