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
namespace distx {

namespace calls {

/// The bytes that one rank sends and receives in one call. Over all ranks, both sums are equal.
struct WireBytes {
  std::size_t sent = 0;
  std::size_t received = 0;

  friend bool operator==(const WireBytes&, const WireBytes&) = default;
};

}  // namespace calls

namespace detail {

template <class T, class S>
constexpr std::size_t element_bytes(const Span<T, S>& span) noexcept {
  if constexpr (requires { span.element_bytes(); })
    return span.element_bytes();
  else
    return sizeof(T);
}

/// Returns the last rank of a chain of ranks that begins at `root`.
constexpr int end_of_chain(int root, int size) noexcept { return (root + size - 1) % size; }

}  // namespace detail

namespace calls {

/// @name wire_bytes(call, rank, size)
/// Returns the bytes that rank `rank` of `size` sends and receives. For well-formed calls, erased or not, in any memory
/// space. Without counts, blocks begin at n*r/N, so the ranks' bytes add up exactly.
/// @{
template <class T, class Op, class S>
[[nodiscard]] constexpr WireBytes wire_bytes(const AllReduce<T, Op, S>& c, int rank, int size) noexcept {
  const std::size_t n = c.send.size(), ranks = static_cast<std::size_t>(size);
  const auto cut = [&](std::size_t r) { return n / ranks * r + n % ranks * r / ranks; };  // n*r/ranks, without overflow
  const std::size_t block = cut(static_cast<std::size_t>(rank) + 1) - cut(static_cast<std::size_t>(rank));
  // Sends each peer its block, then this rank's reduced block to each peer; receives the same.
  const std::size_t bytes = ((n - block) + (ranks - 1) * block) * detail::element_bytes(c.send);
  return {bytes, bytes};
}
template <class T, class Op, class S>
[[nodiscard]] constexpr WireBytes wire_bytes(const ReduceScatter<T, Op, S>& c, int, int size) noexcept {
  return {c.send.size_bytes() - c.receive.size_bytes(), c.receive.size_bytes() * static_cast<std::size_t>(size - 1)};
}
template <class T, class S>
[[nodiscard]] constexpr WireBytes wire_bytes(const AllGather<T, S>& c, int, int size) noexcept {
  return {c.send.size_bytes() * static_cast<std::size_t>(size - 1), c.receive.size_bytes() - c.send.size_bytes()};
}
template <class T, class Op, class S>
[[nodiscard]] constexpr WireBytes wire_bytes(const Reduce<T, Op, S>& c, int rank, int size) noexcept {
  const std::size_t n = size > 1 ? c.send.size_bytes() : 0;
  // The chain of a broadcast in reverse: it ends at the root.
  return {rank == c.root ? 0 : n, rank == detail::end_of_chain(c.root, size) ? 0 : n};
}
template <class T, class S>
[[nodiscard]] constexpr WireBytes wire_bytes(const Broadcast<T, S>& c, int rank, int size) noexcept {
  const std::size_t n = size > 1 ? c.buffer.size_bytes() : 0;
  return {rank == detail::end_of_chain(c.root, size) ? 0 : n, rank == c.root ? 0 : n};
}
template <class T, class S>
[[nodiscard]] constexpr WireBytes wire_bytes(const AllToAll<T, S>& c, int rank, int size) noexcept {
  const auto own = c.send_counts.empty() ? c.send.size() / static_cast<std::size_t>(size)
                                         : c.send_counts[static_cast<std::size_t>(rank)];
  const std::size_t kept = own * detail::element_bytes(c.send);
  return {c.send.size_bytes() - kept, c.receive.size_bytes() - kept};
}
template <class T, class S>
[[nodiscard]] constexpr WireBytes wire_bytes(const Gather<T, S>& c, int rank, int) noexcept {
  if (rank != c.root) return {c.send.size_bytes(), 0};
  return {0, c.receive.size_bytes() - c.send.size_bytes()};
}
template <class T, class S>
[[nodiscard]] constexpr WireBytes wire_bytes(const Scatter<T, S>& c, int rank, int) noexcept {
  if (rank != c.root) return {0, c.receive.size_bytes()};
  return {c.send.size_bytes() - c.receive.size_bytes(), 0};
}
template <class T, class S>
[[nodiscard]] constexpr WireBytes wire_bytes(const Send<T, S>& c, int rank, int) noexcept {
  return {c.to == rank ? 0 : c.buffer.size_bytes(), 0};
}
template <class T, class S>
[[nodiscard]] constexpr WireBytes wire_bytes(const Receive<T, S>& c, int rank, int) noexcept {
  return {0, c.from == rank ? 0 : c.buffer.size_bytes()};
}
template <class T, class S>
[[nodiscard]] constexpr WireBytes wire_bytes(const SendReceive<T, S>& c, int rank, int) noexcept {
  return {c.to == rank ? 0 : c.send.size_bytes(), c.from == rank ? 0 : c.receive.size_bytes()};
}
template <class S>
[[nodiscard]] constexpr WireBytes wire_bytes(const Barrier<S>&, int, int) noexcept {
  return {};
}
/// @}

/// Returns the size of this rank's operands in bytes: the longer side of a call, or both messages of a send-receive.
/// Spans that this rank's call ignores (`receive` on ranks other than the root) do not count.
template <Collective Call>
[[nodiscard]] constexpr std::size_t payload_bytes(const Call& c, int rank) noexcept {
  using enum CollectiveKind;
  if constexpr (Call::kind == reduce)
    return c.send.size_bytes();
  else if constexpr (Call::kind == gather)
    return rank == c.root ? c.receive.size_bytes() : c.send.size_bytes();
  else if constexpr (Call::kind == scatter)
    return rank == c.root ? c.send.size_bytes() : c.receive.size_bytes();
  else if constexpr (Call::kind == send_receive)
    return c.send.size_bytes() + c.receive.size_bytes();
  else if constexpr (requires { c.buffer; })
    return c.buffer.size_bytes();
  else if constexpr (requires { c.send; })
    return std::max(c.send.size_bytes(), c.receive.size_bytes());
  else
    return 0;
}

}  // namespace calls

}  // namespace distx
