// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstddef>
#include <cstdint>
#include <source_location>
#include <span>
#include <string_view>

#include "distx/comm/calls/any_op.hpp"
#include "distx/core/span.hpp"

// The collectives as values: what a communicator's `execute` and `start` take. All borrow their spans; `start` borrows
// them until the Pending's wait. Counts are in elements, one for each rank, and empty where every rank has as many.
// `lengths` is a hash of those of a list's items where a call carries what is packed of them, so that all ranks must
// have packed alike; else 0. A call whose T is AnyElement (and whose Op is AnyOp) is erased: its element type is known
// only at run time.
namespace distx {

/// Which elements of each rank's share a collective is about; borrowed.
using Counts = std::span<const std::size_t>;

/// Every rank receives the reduction of all ranks' `send`. In place where both spans are the same.
template <class T, class Op, class Space = Host>
struct AllReduce {
  static constexpr std::string_view name = "all_reduce";
  using element = T;
  using space = Space;
  Span<const T, Space> send{};
  Span<T, Space> receive{};
  Op op{};
  std::source_location location{};
  std::uint64_t lengths = 0;
};

/// Rank `root` receives the reduction of all ranks' `send`; elsewhere `receive` is not looked at.
template <class T, class Op, class Space = Host>
struct Reduce {
  static constexpr std::string_view name = "reduce";
  using element = T;
  using space = Space;
  Span<const T, Space> send{};
  Span<T, Space> receive{};
  Op op{};
  int root = 0;
  std::source_location location{};
  std::uint64_t lengths = 0;
};

/// Every rank's `buffer` becomes that of `root`.
template <class T, class Space = Host>
struct Broadcast {
  static constexpr std::string_view name = "broadcast";
  using element = T;
  using space = Space;
  Span<T, Space> buffer{};
  int root = 0;
  std::source_location location{};
  std::uint64_t lengths = 0;
};

/// Every rank receives all ranks' `send`, in rank order. In place where `send` is its own block of `receive`.
template <class T, class Space = Host>
struct AllGather {
  static constexpr std::string_view name = "all_gather";
  using element = T;
  using space = Space;
  Span<const T, Space> send{};
  Span<T, Space> receive{};
  Counts counts{};
  std::source_location location{};
  std::uint64_t lengths = 0;
};

/// Rank r receives block r of the reduction of all ranks' `send`. In place where `receive` is that block of `send`.
template <class T, class Op, class Space = Host>
struct ReduceScatter {
  static constexpr std::string_view name = "reduce_scatter";
  using element = T;
  using space = Space;
  Span<const T, Space> send{};
  Span<T, Space> receive{};
  Op op{};
  Counts counts{};
  std::source_location location{};
  std::uint64_t lengths = 0;
};

/// Rank r receives block r of every rank's `send`, in rank order. In place with equal blocks only.
template <class T, class Space = Host>
struct AllToAll {
  static constexpr std::string_view name = "all_to_all";
  using element = T;
  using space = Space;
  Span<const T, Space> send{};
  Span<T, Space> receive{};
  Counts send_counts{};
  Counts receive_counts{};
  std::source_location location{};
  std::uint64_t lengths = 0;
};

/// Rank `root` receives all ranks' `send`, in rank order; elsewhere `receive` and `counts` are not looked at.
template <class T, class Space = Host>
struct Gather {
  static constexpr std::string_view name = "gather";
  using element = T;
  using space = Space;
  Span<const T, Space> send{};
  Span<T, Space> receive{};
  int root = 0;
  Counts counts{};
  std::source_location location{};
  std::uint64_t lengths = 0;
};

/// Rank r receives block r of `send` of `root`; elsewhere `send` and `counts` are not looked at.
template <class T, class Space = Host>
struct Scatter {
  static constexpr std::string_view name = "scatter";
  using element = T;
  using space = Space;
  Span<const T, Space> send{};
  Span<T, Space> receive{};
  int root = 0;
  Counts counts{};
  std::source_location location{};
  std::uint64_t lengths = 0;
};

/// Sends to rank `to`, which receives as many elements; done when the buffer may be used again.
template <class T, class Space = Host>
struct Send {
  static constexpr std::string_view name = "send";
  using element = T;
  using space = Space;
  Span<const T, Space> buffer{};
  int to = 0;
  int tag = 0;
  std::source_location location{};
};

/// Receives from rank `from` the next message of that tag.
template <class T, class Space = Host>
struct Receive {
  static constexpr std::string_view name = "receive";
  using element = T;
  using space = Space;
  Span<T, Space> buffer{};
  int from = 0;
  int tag = 0;
  std::source_location location{};
};

/// Sends to one rank and receives from another (or the same) at once, so that a ring of them cannot block.
template <class T, class Space = Host>
struct SendReceive {
  static constexpr std::string_view name = "send_receive";
  using element = T;
  using space = Space;
  Span<const T, Space> send{};
  int to = 0;
  Span<T, Space> receive{};
  int from = 0;
  int tag = 0;
  std::source_location location{};
};

/// Returns on no rank before it was called on every rank.
template <class Space = Host>
struct Barrier {
  static constexpr std::string_view name = "barrier";
  using element = AnyElement;
  using space = Space;
  std::source_location location{};
};

/// One of the values above.
template <class Call>
concept Collective = requires(const Call& call) {
  typename Call::element;
  typename Call::space;
  { Call::name } -> std::convertible_to<std::string_view>;
  { call.location } -> std::convertible_to<std::source_location>;
};

/// @name The erased form of a call
/// The same call with its types moved into its values; a backend that executes these can stand behind AnyCommunicator.
/// @{
template <class T, ReductionOp<T> Op, class S>
[[nodiscard]] AllReduce<AnyElement, AnyOp, S> erase(const AllReduce<T, Op, S>& c) noexcept {
  return {c.send, c.receive, AnyOp::make<T>(c.op), c.location, c.lengths};
}
template <class T, ReductionOp<T> Op, class S>
[[nodiscard]] Reduce<AnyElement, AnyOp, S> erase(const Reduce<T, Op, S>& c) noexcept {
  return {c.send, c.receive, AnyOp::make<T>(c.op), c.root, c.location, c.lengths};
}
template <class T, class S>
[[nodiscard]] Broadcast<AnyElement, S> erase(const Broadcast<T, S>& c) noexcept {
  return {c.buffer, c.root, c.location, c.lengths};
}
template <class T, class S>
[[nodiscard]] AllGather<AnyElement, S> erase(const AllGather<T, S>& c) noexcept {
  return {c.send, c.receive, c.counts, c.location, c.lengths};
}
template <class T, ReductionOp<T> Op, class S>
[[nodiscard]] ReduceScatter<AnyElement, AnyOp, S> erase(const ReduceScatter<T, Op, S>& c) noexcept {
  return {c.send, c.receive, AnyOp::make<T>(c.op), c.counts, c.location, c.lengths};
}
template <class T, class S>
[[nodiscard]] AllToAll<AnyElement, S> erase(const AllToAll<T, S>& c) noexcept {
  return {c.send, c.receive, c.send_counts, c.receive_counts, c.location, c.lengths};
}
template <class T, class S>
[[nodiscard]] Gather<AnyElement, S> erase(const Gather<T, S>& c) noexcept {
  return {c.send, c.receive, c.root, c.counts, c.location, c.lengths};
}
template <class T, class S>
[[nodiscard]] Scatter<AnyElement, S> erase(const Scatter<T, S>& c) noexcept {
  return {c.send, c.receive, c.root, c.counts, c.location, c.lengths};
}
template <class T, class S>
[[nodiscard]] Send<AnyElement, S> erase(const Send<T, S>& c) noexcept {
  return {c.buffer, c.to, c.tag, c.location};
}
template <class T, class S>
[[nodiscard]] Receive<AnyElement, S> erase(const Receive<T, S>& c) noexcept {
  return {c.buffer, c.from, c.tag, c.location};
}
template <class T, class S>
[[nodiscard]] SendReceive<AnyElement, S> erase(const SendReceive<T, S>& c) noexcept {
  return {c.send, c.to, c.receive, c.from, c.tag, c.location};
}
template <class S>
[[nodiscard]] Barrier<S> erase(const Barrier<S>& c) noexcept {
  return c;
}
// An erased call is its own erased form.
template <class S>
[[nodiscard]] AllReduce<AnyElement, AnyOp, S> erase(const AllReduce<AnyElement, AnyOp, S>& c) noexcept {
  return c;
}
template <class S>
[[nodiscard]] Reduce<AnyElement, AnyOp, S> erase(const Reduce<AnyElement, AnyOp, S>& c) noexcept {
  return c;
}
template <class S>
[[nodiscard]] ReduceScatter<AnyElement, AnyOp, S> erase(const ReduceScatter<AnyElement, AnyOp, S>& c) noexcept {
  return c;
}
/// @}

/// Whether a call is well formed: an op that can reduce its elements, spans that can be moved.
template <class Call>
concept ErasableCall = Collective<Call> && requires(const Call& call) { erase(call); };

template <ErasableCall Call>
using erased_t = decltype(erase(std::declval<const Call&>()));

}  // namespace distx
