// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/shared_memory/exchange.hpp"

// What a rank does in one round of a collective: its own part, on what everybody shows. Reductions add in rank order,
// so the bits depend on nothing but the operands.
namespace distx::shared_memory {

/// All-reduce and reduce: every rank reduces its slice, for all who receive; what is small, each receiver by itself.
template <class Call>
  requires(Call::name == "all_reduce" || Call::name == "reduce")
void work(Exchange<Call>& x, std::size_t round) {
  const int me = x.self.rank;
  const std::size_t bytes = x.piece(me, me, round);
  const Run slice = x.all_inlined() ? Run{0, x.receives_reduced(me) ? bytes : 0} : slice_of(bytes, me, x.self.size);
  auto& targets = x.workspace.targets;
  targets.clear();
  for (int r = 0; r < x.self.size; ++r) {
    if (!x.receives_reduced(r) || (r != me && x.all_inlined())) continue;
    std::byte* const receive = r == me ? x.own_receive() : x.peer(r).receive;
    // Where a rank is not reached, into its stage: what it shows there of this slice has just been read.
    targets.push_back(slice.offset + (receive != nullptr ? receive + x.offset(round) : x.stage_of(r, round)));
  }
  if (slice.bytes != 0) x.reduce(slice.offset, slice.bytes, round);
}

/// Takes what the others have reduced for this rank out of its stage, where they do not reach its memory.
template <class Call>
void collect(Exchange<Call>& x, std::size_t round) {
  const int me = x.self.rank;
  if (!x.receives_reduced(me) || x.peer(me).receive != nullptr) return;
  const std::size_t bytes = x.piece(me, me, round);
  for (int r = 0; r < x.self.size; ++r) {
    const Run slice = slice_of(bytes, r, x.self.size);
    if (r != me)
      x.copy_bytes(x.own_receive() + x.offset(round) + slice.offset, x.stage_of(me, round) + slice.offset, slice.bytes);
  }
}

inline void work(Exchange<ReduceScatter<AnyElement, AnyOp>>& x, std::size_t round) {
  const int me = x.self.rank;
  const std::size_t bytes = x.piece(me, me, round);
  x.workspace.targets.assign(1, x.own_receive() + x.offset(round));
  if (bytes != 0) x.reduce(0, bytes, round);
}

/// Where all ranks reach a receiver's memory and the root's, each of them copies its slice, the root too.
inline void work(Exchange<Broadcast<AnyElement>>& x, std::size_t round) {
  const int me = x.self.rank, root = x.call.root;
  const std::size_t bytes = x.piece(root, me, round);
  const std::byte* const from = x.source(root, me, round);
  for (int r = 0; r < x.self.size; ++r) {
    std::byte* const receive = r == me ? x.own_receive() : x.peer(r).receive;
    if (r == root || receive == nullptr) continue;
    const bool together = !x.all_inlined() && !x.staged() && x.peer(r).receive != nullptr;
    if (!together && r != me) continue;
    const Run part = together ? slice_of(bytes, me, x.self.size) : Run{0, bytes};
    x.copy_bytes(receive + x.offset(round) + part.offset, from + part.offset, part.bytes);
  }
}

inline void work(Exchange<AllGather<AnyElement>>& x, std::size_t round) {
  const auto width = width_of(x.call);
  for (int r = 0; r < x.self.size; ++r)
    x.copy_bytes(x.own_receive() + block_offset(x.call.counts, x.call.send.size(), r) * width + x.offset(round),
                 x.source(r, x.self.rank, round), x.piece(r, x.self.rank, round));
}

inline void work(Exchange<Gather<AnyElement>>& x, std::size_t round) {
  const int me = x.self.rank, root = x.call.root;
  const auto width = width_of(x.call);
  const Seen& to = x.peer(root);
  const auto block = [&](int r) { return block_offset(to.send_counts, to.send_count, r) * width + x.offset(round); };
  if (to.receive != nullptr && !x.all_inlined()) {
    x.copy_bytes(to.receive + block(me), x.source(me, root, round), x.piece(me, root, round));
  } else if (me == root) {
    for (int r = 0; r < x.self.size; ++r)
      x.copy_bytes(x.own_receive() + block(r), x.source(r, me, round), x.piece(r, me, round));
  }
}

inline void work(Exchange<Scatter<AnyElement>>& x, std::size_t round) {
  const int me = x.self.rank, root = x.call.root;
  x.copy_bytes(x.own_receive() + x.offset(round), x.source(root, me, round), x.piece(root, me, round));
}

inline void work(Exchange<AllToAll<AnyElement>>& x, std::size_t round) {
  const auto& c = x.call;
  const int me = x.self.rank;
  const auto width = width_of(c);
  const auto equal = c.send.size() / static_cast<std::size_t>(x.self.size);
  if (c.send_counts.empty() && c.send.data() == c.receive.data() && !x.staged() && !x.peer(me).inlined) {
    // In place: of every pair of ranks the lower one swaps the two blocks.
    std::byte* mine = x.own_receive();
    for (int r = me + 1; r < x.self.size; ++r)
      std::swap_ranges(mine + static_cast<std::size_t>(r) * equal * width,
                       mine + static_cast<std::size_t>(r + 1) * equal * width,
                       x.peer(r).receive + static_cast<std::size_t>(me) * equal * width);
    return;
  }
  for (int r = 0; r < x.self.size; ++r)
    x.copy_bytes(x.own_receive() + block_offset(c.receive_counts, equal, r) * width + x.offset(round),
                 x.source(r, me, round), x.piece(r, me, round));
}

inline void work(Exchange<Barrier<Host>>&, std::size_t) {}

/// Block by block where fingerprints cannot say it: every rank looks at all ranks, so that all get the same error.
template <Collective Call>
void agree(const Exchange<Call>& x, const ErrorContext& context) {
  const int size = x.self.size;
  const auto demand = [&](int from, std::size_t sent, int to, std::size_t received) {
    if (sent != received)
      throw MismatchError("rank " + std::to_string(from) + " sends rank " + std::to_string(to) + " " +
                              std::to_string(sent) + " elements, which receives " + std::to_string(received),
                          context);
  };
  if constexpr (Call::name == "gather" || Call::name == "scatter") {
    const Seen& root = x.peer(x.call.root);
    for (int r = 0; r < size; ++r) {
      if constexpr (Call::name == "gather")
        demand(r, x.peer(r).send_count, x.call.root, block_count(root.send_counts, root.send_count, r));
      else
        demand(x.call.root, block_count(root.send_counts, root.receive_count, r), r, x.peer(r).receive_count);
    }
  } else if constexpr (Call::name == "all_to_all") {
    for (int from = 0; from < size; ++from)
      for (int to = 0; to < size; ++to)
        if (!x.peer(from).send_counts.empty() && !x.peer(to).receive_counts.empty())
          demand(from, x.peer(from).send_counts[static_cast<std::size_t>(to)], to,
                 x.peer(to).receive_counts[static_cast<std::size_t>(from)]);
  }
}

}  // namespace distx::shared_memory
