// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstring>

#include "distx/comm/arena/arena.hpp"

// What a rank does in a collective once every rank has posted: its own part, on everybody's buffers. `peer(r)` is rank
// r's post. Reductions add in rank order, so the bits depend on nothing but the operands.
namespace distx::arena {

struct Slice {
  std::size_t begin;
  std::size_t count;
};

/// Part `rank` of n elements, cut on 64-byte lines, so that two ranks never write to one line of an aligned buffer.
inline Slice slice_of(std::size_t n, std::size_t element_bytes, int rank, int size) noexcept {
  const std::size_t per_line = std::max<std::size_t>(1, alignment_bytes / element_bytes);
  const std::size_t lines = (n + per_line - 1) / per_line;
  const auto cut = [&](int r) {
    return std::min(n, lines * static_cast<std::size_t>(r) / static_cast<std::size_t>(size) * per_line);
  };
  return {cut(rank), cut(rank + 1) - cut(rank)};
}

inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  if (bytes != 0 && to != from) std::memcpy(to, from, bytes);
}

/// The lists of pointers that a reduction needs, kept between calls so that none allocates.
struct Pointers {
  std::vector<const void*> sources;
  std::vector<void*> targets;
};

template <class Peer>
void reduce_block(const AnyOp& op, const Peer& peer, int size, std::size_t offset_bytes, std::size_t count,
                  Pointers& pointers) {
  pointers.sources.clear();
  for (int r = 0; r < size; ++r) pointers.sources.push_back(peer(r).send + offset_bytes);
  op.reduce(pointers.targets.data(), pointers.targets.size(), pointers.sources.data(), pointers.sources.size(), count,
            size);
}

template <class Peer>
void work(const AllReduce<AnyElement, AnyOp>& c, const RankOf& self, const Peer& peer, Pointers& pointers) {
  const auto width = c.send.element_bytes();
  const Slice slice = slice_of(c.send.size(), width, self.rank, self.size);
  pointers.targets.clear();
  for (int r = 0; r < self.size; ++r) pointers.targets.push_back(peer(r).receive + slice.begin * width);
  reduce_block(c.op, peer, self.size, slice.begin * width, slice.count, pointers);
}

template <class Peer>
void work(const Reduce<AnyElement, AnyOp>& c, const RankOf& self, const Peer& peer, Pointers& pointers) {
  const auto width = c.send.element_bytes();
  const Slice slice = slice_of(c.send.size(), width, self.rank, self.size);
  pointers.targets.assign(1, peer(c.root).receive + slice.begin * width);
  reduce_block(c.op, peer, self.size, slice.begin * width, slice.count, pointers);
}

template <class Peer>
void work(const ReduceScatter<AnyElement, AnyOp>& c, const RankOf& self, const Peer& peer, Pointers& pointers) {
  const auto offset = block_offset(c.counts, c.receive.size(), self.rank) * c.receive.element_bytes();
  pointers.targets.assign(1, c.receive.data());
  reduce_block(c.op, peer, self.size, offset, c.receive.size(), pointers);
}

template <class Peer>
void work(const Broadcast<AnyElement>& c, const RankOf&, const Peer& peer, Pointers&) {
  copy_bytes(c.buffer.bytes(), peer(c.root).receive, c.buffer.size_bytes());
}

template <class Peer>
void work(const AllGather<AnyElement>& c, const RankOf& self, const Peer& peer, Pointers&) {
  const auto width = c.send.element_bytes();
  for (int r = 0; r < self.size; ++r)
    copy_bytes(c.receive.bytes() + block_offset(c.counts, c.send.size(), r) * width, peer(r).send,
               block_count(c.counts, c.send.size(), r) * width);
}

template <class Peer>
void work(const AllToAll<AnyElement>& c, const RankOf& self, const Peer& peer, Pointers&) {
  const auto width = c.send.element_bytes();
  const auto equal = c.send.size() / static_cast<std::size_t>(self.size);
  if (c.send_counts.empty() && c.send.data() == c.receive.data()) {
    // In place: of every pair of ranks the lower one swaps the two blocks.
    std::byte* mine = c.receive.bytes();
    for (int r = self.rank + 1; r < self.size; ++r)
      std::swap_ranges(mine + static_cast<std::size_t>(r) * equal * width,
                       mine + static_cast<std::size_t>(r + 1) * equal * width,
                       peer(r).receive + static_cast<std::size_t>(self.rank) * equal * width);
    return;
  }
  for (int r = 0; r < self.size; ++r)
    copy_bytes(c.receive.bytes() + block_offset(c.receive_counts, equal, r) * width,
               peer(r).send + block_offset(peer(r).send_counts, equal, self.rank) * width,
               block_count(c.receive_counts, equal, r) * width);
}

template <class Peer>
void work(const Gather<AnyElement>& c, const RankOf& self, const Peer& peer, Pointers&) {
  const Post& root = peer(c.root);
  copy_bytes(root.receive + block_offset(root.send_counts, root.send_count, self.rank) * c.send.element_bytes(),
             c.send.bytes(), c.send.size_bytes());
}

template <class Peer>
void work(const Scatter<AnyElement>& c, const RankOf& self, const Peer& peer, Pointers&) {
  const Post& root = peer(c.root);
  copy_bytes(c.receive.bytes(),
             root.send + block_offset(root.send_counts, root.receive_count, self.rank) * c.receive.element_bytes(),
             c.receive.size_bytes());
}

template <class Peer>
void work(const Barrier<Host>&, const RankOf&, const Peer&, Pointers&) {}

/// What this rank publishes of a call.
template <Collective Call>
Post post_of(const Call& c) {
  Post post;
  post.fingerprint = fingerprint(c);
  if constexpr (requires { c.buffer; }) {
    post.send = post.receive = c.buffer.bytes();
    post.send_count = post.receive_count = c.buffer.size();
  } else if constexpr (requires { c.send; }) {
    post.send = c.send.bytes();
    post.receive = c.receive.bytes();
    post.send_count = c.send.size();
    post.receive_count = c.receive.size();
  }
  if constexpr (requires { c.counts; }) post.send_counts = c.counts;
  if constexpr (requires { c.send_counts; }) {
    post.send_counts = c.send_counts;
    post.receive_counts = c.receive_counts;
  }
  return post;
}

/// Block by block where fingerprints cannot say it: every rank looks at all ranks, so that all get the same error.
template <Collective Call, class Peer>
void agree(const Call& c, const RankOf& self, const Peer& peer) {
  const auto demand = [&](int from, std::size_t sent, int to, std::size_t received) {
    if (sent != received)
      throw MismatchError("rank " + std::to_string(from) + " sends rank " + std::to_string(to) + " " +
                              std::to_string(sent) + " elements, which receives " + std::to_string(received),
                          self.context(c));
  };
  if constexpr (Call::name == "gather" || Call::name == "scatter") {
    const Post& root = peer(c.root);
    for (int r = 0; r < self.size; ++r) {
      if constexpr (Call::name == "gather")
        demand(r, peer(r).send_count, c.root, block_count(root.send_counts, root.send_count, r));
      else
        demand(c.root, block_count(root.send_counts, root.receive_count, r), r, peer(r).receive_count);
    }
  } else if constexpr (Call::name == "all_to_all") {
    for (int from = 0; from < self.size; ++from)
      for (int to = 0; to < self.size; ++to)
        if (!peer(from).send_counts.empty() && !peer(to).receive_counts.empty())
          demand(from, peer(from).send_counts[static_cast<std::size_t>(to)], to,
                 peer(to).receive_counts[static_cast<std::size_t>(from)]);
  }
}

}  // namespace distx::arena
