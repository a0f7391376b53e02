// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstddef>

#include "distx/comm/calls/collectives.hpp"

// The bytes of each call, for the algorithm that transfers the fewest bytes and loads every link equally. With N ranks
// and n bytes: an all_reduce (reduce-scatter, then all-gather) transfers 2n(N-1)/N per rank; reduce-scatter, all-gather
// and all_to_all n(N-1)/N, by direct exchange of blocks; broadcast and reduce n over each of N-1 links of a chain of
// ranks; gather and scatter directly to and from the root. The lower bounds are those of Chan, Heimlich, Purkayastha,
// van de Geijn, "Collective communication: theory, practice, and experience" (2007).
namespace distx::inline DISTX_ABI {

namespace calls {

/// The bytes that one rank sends and receives in one call. Over all ranks, both sums are equal.
struct WireBytes {
  std::size_t sent = 0;
  std::size_t received = 0;

  friend bool operator==(const WireBytes&, const WireBytes&) = default;
};

/// Returns the bytes that rank `rank` of `size` sends and receives in a well-formed call, in any memory space. Without
/// counts, blocks begin at n*r/N, so the ranks' bytes add up exactly.
template <ErasableCall C>
[[nodiscard]] WireBytes wire_bytes(const C& typed, int rank, int size) noexcept {
  using enum CollectiveKind;
  const auto c = erase(typed);
  const std::size_t sent = c.send.size_bytes(), received = c.receive.size_bytes();
  const auto ranks = static_cast<std::size_t>(size);
  const int last = (c.root + size - 1) % size;  // of the chain of ranks that begins at the root
  switch (c.kind) {
    case all_reduce: {
      const std::size_t n = c.send.size();
      const auto cut = [&](int r) {  // n*r/ranks, without overflow
        return n / ranks * static_cast<std::size_t>(r) + n % ranks * static_cast<std::size_t>(r) / ranks;
      };
      const std::size_t block = cut(rank + 1) - cut(rank);
      // Sends each peer its block, then this rank's reduced block to each peer; receives the same.
      const std::size_t bytes = ((n - block) + (ranks - 1) * block) * c.send.element_bytes();
      return {bytes, bytes};
    }
    case reduce_scatter:
      return {sent - received, received * (ranks - 1)};
    case all_gather:
      return {sent * (ranks - 1), received - sent};
    case reduce:  // the chain of a broadcast in reverse: it ends at the root
      if (size == 1) return {};
      return {rank == c.root ? 0 : sent, rank == last ? 0 : sent};
    case broadcast:
      if (size == 1) return {};
      return {rank == last ? 0 : sent, rank == c.root ? 0 : sent};
    case all_to_all: {
      const std::size_t own = c.counts.empty() ? c.send.size() / ranks : c.counts[static_cast<std::size_t>(rank)];
      const std::size_t kept = own * c.send.element_bytes();
      return {sent - kept, received - kept};
    }
    case gather:
      if (rank != c.root) return {sent, 0};
      return {0, received - sent};
    case scatter:
      if (rank != c.root) return {0, received};
      return {sent - received, 0};
    case send:
    case receive:
    case send_receive:
      return {c.to == rank ? 0 : sent, c.from == rank ? 0 : received};
    case barrier:
      break;
  }
  return {};
}

/// Returns the size of this rank's operands in bytes: the longer side of a call, or both messages of a send-receive.
/// Spans that this rank's call ignores (`receive` on ranks other than the root) do not count.
template <ErasableCall C>
[[nodiscard]] std::size_t payload_bytes(const C& typed, int rank) noexcept {
  using enum CollectiveKind;
  const auto c = erase(typed);
  const std::size_t sent = c.send.size_bytes(), received = c.receive.size_bytes();
  if (c.kind == reduce) return sent;
  if (c.kind == gather) return rank == c.root ? received : sent;
  if (c.kind == scatter) return rank == c.root ? sent : received;
  return c.kind == send_receive ? sent + received : std::max(sent, received);
}

}  // namespace calls

}  // namespace distx::inline DISTX_ABI
