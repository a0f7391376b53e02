// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstring>
#include <vector>

#include "distx/comm/calls/validate.hpp"
#include "distx/comm/memory.hpp"

// A rank's view of its peers' side of a call, independent of transport: the checks that need all ranks' counts, and the
// local part of a call whose operands are all available. Shared by the backends that transfer small calls whole.
namespace distx::inline DISTX_ABI::detail {

/// One rank's side of a call as seen by another rank; pointers are null if the memory is not accessible to this rank.
struct PeerView {
  const std::byte* send = nullptr;
  std::byte* receive = nullptr;
  std::size_t send_count = 0;
  std::size_t receive_count = 0;
  Counts send_counts{};
  Counts receive_counts{};
  bool inlined = false;  ///< `send` is all data that the rank sends, a copy but for this rank in a reduction
};

/// Sets this rank's view of the call that it makes: its spans, their lengths, and the counts that other ranks need.
inline void view_own_call(PeerView& view, const Call<Host>& call, int rank) noexcept {
  const CallTraits& traits = traits_of(call.kind);
  view.send = call.send.bytes();
  view.receive = call.receive.bytes();
  view.send_count = call.send.size();
  view.receive_count = call.receive.size();
  // One by one: a load of both words of a span that was just stored word by word waits for all earlier stores.
  view.send_counts = view.receive_counts = {};
  if (!traits.exchanges_counts) return;
  if (rank == call.root || !traits.rooted) view.send_counts = call.counts;
  view.receive_counts = call.receive_counts;
}

/// Returns the bytes of one element.
[[nodiscard]] inline std::size_t element_width(const Call<Host>& c) noexcept {
  return with_compared_span(c, [](const auto& span) { return span.element_bytes(); });
}

/// Returns whether rank `from` sends data in such a call.
[[nodiscard]] inline bool sends(const Call<Host>& c, int from) noexcept {
  return !traits_of(c.kind).root_sends || from == c.root;
}

/// Returns the part that rank `from` sends to rank `to`.
[[nodiscard]] inline ByteRange range_of(const Call<Host>& c, const std::vector<PeerView>& peers, int from,
                                        int to) noexcept {
  if (!sends(c, from)) return {};
  const PeerView& sender = peers[static_cast<std::size_t>(from)];
  const std::size_t width = element_width(c);
  if (!traits_of(c.kind).blockwise) return {0, sender.send_count * width};
  Counts counts = sender.send_counts;
  std::size_t equal = sender.receive_count;  // of a scatter
  if (c.kind == CollectiveKind::reduce_scatter) {
    counts = c.counts;  // the same on all ranks
    equal = c.receive.size();
  } else if (c.kind == CollectiveKind::all_to_all) {
    equal = sender.send_count / peers.size();
  }
  return {block_offset(counts, equal, to) * width, block_count(counts, equal, to) * width};
}

/// Throws if a rank sends another number of elements than its peer receives.
inline void check_block(int from, std::size_t sent, int to, std::size_t received, const ErrorContext& context) {
  if (sent != received)
    throw MismatchError("rank " + std::to_string(from) + " sends " + std::to_string(sent) + " elements to rank " +
                            std::to_string(to) + ", which receives " + std::to_string(received),
                        context);
}

/// Compares the size of this rank's block of a scatter with the root's; needs their views only.
/// @throws MismatchError
inline void check_own_block(const Call<Host>& c, const std::vector<PeerView>& peers, int rank,
                            const ErrorContext& context) {
  if (c.kind != CollectiveKind::scatter) return;
  const PeerView& root = peers[static_cast<std::size_t>(c.root)];
  check_block(c.root, block_count(root.send_counts, root.receive_count, rank), rank, c.receive.size(), context);
}

/// Compares block sizes, which fingerprints do not contain; every rank checks all ranks, so all throw the same error.
/// @throws MismatchError
inline void check_blocks(const Call<Host>& c, const std::vector<PeerView>& peers, const ErrorContext& context) {
  if (!traits_of(c.kind).exchanges_counts) return;
  const auto check = [&](int from, std::size_t sent, int to, std::size_t received) {
    check_block(from, sent, to, received, context);
  };
  const int size = static_cast<int>(peers.size());
  const auto peer = [&](int r) -> const PeerView& { return peers[static_cast<std::size_t>(r)]; };
  if (c.kind == CollectiveKind::gather) {
    for (int r = 0; r < size; ++r)
      check(r, peer(r).send_count, c.root, block_count(peer(c.root).send_counts, peer(c.root).send_count, r));
  } else if (c.kind == CollectiveKind::scatter) {
    for (int r = 0; r < size; ++r)
      check(c.root, block_count(peer(c.root).send_counts, peer(c.root).receive_count, r), r, peer(r).receive_count);
  } else if (c.kind == CollectiveKind::all_to_all) {
    for (int from = 0; from < size; ++from)
      for (int to = 0; to < size; ++to)
        if (!peer(from).send_counts.empty() && !peer(to).receive_counts.empty())
          check(from, peer(from).send_counts[static_cast<std::size_t>(to)], to,
                peer(to).receive_counts[static_cast<std::size_t>(from)]);
  }
}

inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  if (bytes != 0 && to != from) std::memcpy(to, from, bytes);
}

/// Completes a collective of the only rank: its one block goes to itself.
inline void complete_alone(const Call<Host>& call) {
  if (traits_of(call.kind).reduces && !call.send.empty()) {
    const void* const sources[] = {call.send.data()};
    if (call.consumer != nullptr) return call.consumer->consume(0, sources, call.send.size());
    // The reduction of one operand is the operand, and so is its average.
    void* const target = call.receive.data();
    if (call.op.finishes() && call.op.kind() != OpKind::average)
      return call.op.reduce(&target, 1, sources, 1, call.send.size(), 1);
  }
  copy_bytes(call.receive.bytes(), call.send.bytes(), call.send.size_bytes());
}

/// Completes a call whose operands are all available: copies, or reduces in rank order, into this rank's memory.
/// @pre every rank that sends is inlined; this rank's operand may be where the caller has it
/// @param sources workspace that is kept between calls to avoid allocations
inline void complete_inlined(const Call<Host>& c, const RankOf& self, const std::vector<PeerView>& peers,
                             std::vector<const void*>& sources) {
  using enum CollectiveKind;
  const int me = self.rank;
  const CallTraits& traits = traits_of(c.kind);
  const auto copy_from = [&](int from, std::byte* to) {
    const ByteRange range = range_of(c, peers, from, me);
    copy_bytes(to, peers[static_cast<std::size_t>(from)].send + range.offset, range.bytes);
  };
  if (traits.root_sends) return copy_from(c.root, c.receive.bytes());
  if (c.kind == barrier || (traits.rooted && me != c.root)) return;
  if (traits.reduces) {
    const auto [offset, bytes] = range_of(c, peers, me, me);  // the same of all operands
    if (bytes == 0) return;
    sources.resize(peers.size());
    for (std::size_t r = 0; r < peers.size(); ++r) sources[r] = peers[r].send + offset;
    void* const target = c.receive.data();
    return c.op.reduce(&target, 1, sources.data(), sources.size(), bytes / element_width(c), self.size);
  }
  const bool all = c.kind == all_to_all;
  const Counts counts = all ? c.receive_counts : c.counts;
  const std::size_t equal = all ? c.send.size() / peers.size() : c.send.size(), width = element_width(c);
  for (int r = 0; r < self.size; ++r) copy_from(r, c.receive.bytes() + block_offset(counts, equal, r) * width);
}

}  // namespace distx::inline DISTX_ABI::detail
