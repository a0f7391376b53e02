// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <functional>

#include "distx/nccl/detail/comm_stream.hpp"

// The collectives that move elements, as bytes: NCCL's own if all blocks are equal, else messages in one group.
//
// Gather and scatter are always messages: only the root knows whether the blocks are equal, and NCCL's own calls have
// to be made by all ranks.
namespace distx::inline DISTX_ABI::nccl::detail {

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
inline void send_bytes(CommStream& ch, const std::byte* from, std::size_t bytes, int to, const ErrorContext& where) {
  if (bytes != 0)
    ch.check(ncclSend(from, bytes, ncclUint8, to, ch.comm(), ch.stream.native_handle()), "ncclSend", where);
}
/// @pre in a group
inline void receive_bytes(CommStream& ch, std::byte* to, std::size_t bytes, int from, const ErrorContext& where) {
  if (bytes != 0)
    ch.check(ncclRecv(to, bytes, ncclUint8, from, ch.comm(), ch.stream.native_handle()), "ncclRecv", where);
}

/// Whether counts, which are the same on every rank, differ between blocks.
[[nodiscard]] inline bool uneven(calls::Counts counts) noexcept {
  return std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) != counts.end();
}

/// Sends every other rank its block of one buffer and receives its block into another; this rank's block is copied.
template <class SendBlocks, class ReceiveBlocks>
void exchange(CommStream& ch, const ErrorContext& where, const std::byte* send, const SendBlocks& sent,
              std::byte* receive, const ReceiveBlocks& received) {
  const int me = ch.self.rank;
  ch.copy(receive + received.offset(me), send + sent.offset(me), sent.bytes(me), where);
  if (ch.self.size == 1) return;
  ch.grouped(where, [&] {
    for (int rank = 0; rank < ch.self.size; ++rank) {
      if (rank == me) continue;
      send_bytes(ch, send + sent.offset(rank), sent.bytes(rank), rank, where);
      receive_bytes(ch, receive + received.offset(rank), received.bytes(rank), rank, where);
    }
  });
}

/// Sends this rank's block to every rank and receives theirs.
template <class AllBlocks>
void gather_blocks(CommStream& ch, const ErrorContext& where, const std::byte* own, std::byte* receive,
                   const AllBlocks& blocks) {
  const int me = ch.self.rank;
  ch.copy(receive + blocks.offset(me), own, blocks.bytes(me), where);
  if (ch.self.size == 1) return;
  ch.grouped(where, [&] {
    for (int rank = 0; rank < ch.self.size; ++rank) {
      if (rank == me) continue;
      send_bytes(ch, own, blocks.bytes(me), rank, where);
      receive_bytes(ch, receive + blocks.offset(rank), blocks.bytes(rank), rank, where);
    }
  });
}

inline void issue_broadcast(CommStream& ch, const calls::Call<Cuda>& c, const ErrorContext& where) {
  if (c.receive.empty()) return;
  ch.check(ncclBroadcast(c.receive.data(), c.receive.data(), c.receive.size_bytes(), ncclUint8, c.root, ch.comm(),
                         ch.stream.native_handle()),
           "ncclBroadcast", where);
}

inline void issue_all_gather(CommStream& ch, const calls::Call<Cuda>& c, const ErrorContext& where) {
  if (c.receive.empty()) return;
  if (uneven(c.counts))
    return gather_blocks(ch, where, c.send.bytes(), c.receive.bytes(), ByteBlocks{c.counts, 0, c.send.element_bytes()});
  ch.check(ncclAllGather(c.send.data(), c.receive.data(), c.send.size_bytes(), ncclUint8, ch.comm(),
                         ch.stream.native_handle()),
           "ncclAllGather", where);
}

/// @return whether this NCCL has the call
template <class Comm>
bool all_to_all(Comm comm, CommStream& ch, const calls::Call<Cuda>& c, const ErrorContext& where, const void* send,
                std::size_t bytes) {
  if constexpr (HasAllToAll<Comm>) {
    ch.check(ncclAlltoAll(send, c.receive.data(), bytes, ncclUint8, comm, ch.stream.native_handle()), "ncclAlltoAll",
             where);
    return true;
  }
  return false;
}

inline void issue_all_to_all(CommStream& ch, const calls::Call<Cuda>& c, const ErrorContext& where) {
  if (c.send.empty() && c.receive.empty()) return;
  const std::byte* send = c.send.bytes();
  if (send == c.receive.bytes()) {
    std::byte* const kept = ch.workspace(c.send.size_bytes());
    ch.copy(kept, send, c.send.size_bytes(), where);
    send = kept;
  }
  const std::size_t equal = c.send.size() / static_cast<std::size_t>(ch.self.size);
  const std::size_t element_bytes = c.send.element_bytes();
  if (c.counts.empty() && all_to_all(ch.comm(), ch, c, where, send, equal * element_bytes)) return;
  exchange(ch, where, send, ByteBlocks{c.counts, equal, element_bytes}, c.receive.bytes(),
           ByteBlocks{c.receive_counts, equal, element_bytes});
}

inline void issue_gather(CommStream& ch, const calls::Call<Cuda>& c, const ErrorContext& where) {
  if (ch.self.rank != c.root) {
    ch.grouped(where, [&] { send_bytes(ch, c.send.bytes(), c.send.size_bytes(), c.root, where); });
    return;
  }
  const ByteBlocks blocks{c.counts, c.send.size(), c.send.element_bytes()};
  ch.copy(c.receive.bytes() + blocks.offset(c.root), c.send.bytes(), c.send.size_bytes(), where);
  ch.grouped(where, [&] {
    for (int rank = 0; rank < ch.self.size; ++rank)
      if (rank != c.root) receive_bytes(ch, c.receive.bytes() + blocks.offset(rank), blocks.bytes(rank), rank, where);
  });
}

inline void issue_scatter(CommStream& ch, const calls::Call<Cuda>& c, const ErrorContext& where) {
  if (ch.self.rank != c.root) {
    ch.grouped(where, [&] { receive_bytes(ch, c.receive.bytes(), c.receive.size_bytes(), c.root, where); });
    return;
  }
  const ByteBlocks blocks{c.counts, c.receive.size(), c.receive.element_bytes()};
  ch.copy(c.receive.bytes(), c.send.bytes() + blocks.offset(c.root), c.receive.size_bytes(), where);
  ch.grouped(where, [&] {
    for (int rank = 0; rank < ch.self.size; ++rank)
      if (rank != c.root) send_bytes(ch, c.send.bytes() + blocks.offset(rank), blocks.bytes(rank), rank, where);
  });
}

}  // namespace distx::inline DISTX_ABI::nccl::detail
