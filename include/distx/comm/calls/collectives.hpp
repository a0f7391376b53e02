// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstddef>
#include <cstdint>
#include <source_location>
#include <span>
#include <string_view>

#include "distx/comm/calls/any_op.hpp"
#include "distx/core/span.hpp"

// The collectives as values: the arguments of a communicator's `execute` and `start`. A call borrows its spans; `start`
// borrows them until the Pending is waited for. Counts are in elements, one per rank, and empty if all blocks are
// equal. `lengths` is compared across ranks: a hash of the item lengths of a coalesced list, or 0. A call with
// AnyElement (and AnyOp) is erased: its element type is known at run time only.
namespace distx {

namespace detail {

/// Takes the operands of a reduction where they are, and reduces them by itself.
class OperandConsumer {
 public:
  /// Takes `count` elements of every rank, from element `begin` of this rank's result on.
  /// @param operands  where they begin, in rank order
  virtual void consume(std::size_t begin, std::span<const void* const> operands, std::size_t count) = 0;

 protected:
  ~OperandConsumer() = default;
};

}  // namespace detail

namespace calls {

/// The operation of a call.
enum class CollectiveKind : std::uint8_t {
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  all_to_all,
  gather,
  scatter,
  send,
  receive,
  send_receive,
  barrier
};

/// Returns the name of an operation, spelled as its function: `all_reduce`.
[[nodiscard]] constexpr std::string_view name_of(CollectiveKind kind) noexcept {
  constexpr std::string_view names[] = {"all_reduce",     "reduce",     "broadcast",    "all_gather",
                                        "reduce_scatter", "all_to_all", "gather",       "scatter",
                                        "send",           "receive",    "send_receive", "barrier"};
  return names[static_cast<std::size_t>(kind)];
}

/// The number of elements of each rank's block, in rank order; borrowed.
using Counts = std::span<const std::size_t>;

/// Every rank receives the reduction of all ranks' `send`. In place if both spans are the same.
template <class T, class Op, class Space = Host>
struct AllReduce {
  static constexpr CollectiveKind kind = CollectiveKind::all_reduce;
  static constexpr std::string_view name = name_of(kind);
  using element = T;
  using space = Space;
  Span<const T, Space> send{};
  Span<T, Space> receive{};
  Op op{};
  std::source_location location{};
  std::uint64_t lengths = 0;
};

/// Rank `root` receives the reduction of all ranks' `send`; `receive` is ignored on other ranks.
template <class T, class Op, class Space = Host>
struct Reduce {
  static constexpr CollectiveKind kind = CollectiveKind::reduce;
  static constexpr std::string_view name = name_of(kind);
  using element = T;
  using space = Space;
  Span<const T, Space> send{};
  Span<T, Space> receive{};
  Op op{};
  int root = 0;
  std::source_location location{};
  std::uint64_t lengths = 0;
};

/// Copies the `buffer` of rank `root` to every rank.
template <class T, class Space = Host>
struct Broadcast {
  static constexpr CollectiveKind kind = CollectiveKind::broadcast;
  static constexpr std::string_view name = name_of(kind);
  using element = T;
  using space = Space;
  Span<T, Space> buffer{};
  int root = 0;
  std::source_location location{};
  std::uint64_t lengths = 0;
};

/// Every rank receives all ranks' `send`, in rank order. In place if `send` is this rank's block of `receive`.
template <class T, class Space = Host>
struct AllGather {
  static constexpr CollectiveKind kind = CollectiveKind::all_gather;
  static constexpr std::string_view name = name_of(kind);
  using element = T;
  using space = Space;
  Span<const T, Space> send{};
  Span<T, Space> receive{};
  Counts counts{};
  std::source_location location{};
  std::uint64_t lengths = 0;
  std::string_view label{};  ///< names, in errors, what `lengths` stands for; borrowed
};

/// Rank r receives block r of the reduction of all ranks' `send`. In place where `receive` is that block of `send`.
template <class T, class Op, class Space = Host>
struct ReduceScatter {
  static constexpr CollectiveKind kind = CollectiveKind::reduce_scatter;
  static constexpr std::string_view name = name_of(kind);
  using element = T;
  using space = Space;
  Span<const T, Space> send{};
  Span<T, Space> receive{};
  Op op{};
  Counts counts{};
  std::source_location location{};
  std::uint64_t lengths = 0;
  /// Internal: if not null, a communicator that `passes_operands` may call it instead of writing to `receive`.
  detail::OperandConsumer* consumer = nullptr;
};

/// Rank r receives block r of every rank's `send`, in rank order. In place only with equal blocks.
template <class T, class Space = Host>
struct AllToAll {
  static constexpr CollectiveKind kind = CollectiveKind::all_to_all;
  static constexpr std::string_view name = name_of(kind);
  using element = T;
  using space = Space;
  Span<const T, Space> send{};
  Span<T, Space> receive{};
  Counts send_counts{};
  Counts receive_counts{};
  std::source_location location{};
  std::uint64_t lengths = 0;
};

/// Rank `root` receives all ranks' `send`, in rank order; `receive` and `counts` are ignored on other ranks.
template <class T, class Space = Host>
struct Gather {
  static constexpr CollectiveKind kind = CollectiveKind::gather;
  static constexpr std::string_view name = name_of(kind);
  using element = T;
  using space = Space;
  Span<const T, Space> send{};
  Span<T, Space> receive{};
  int root = 0;
  Counts counts{};
  std::source_location location{};
  std::uint64_t lengths = 0;
};

/// Rank r receives block r of the `send` of rank `root`; `send` and `counts` are ignored on other ranks.
template <class T, class Space = Host>
struct Scatter {
  static constexpr CollectiveKind kind = CollectiveKind::scatter;
  static constexpr std::string_view name = name_of(kind);
  using element = T;
  using space = Space;
  Span<const T, Space> send{};
  Span<T, Space> receive{};
  int root = 0;
  Counts counts{};
  std::source_location location{};
  std::uint64_t lengths = 0;
};

/// Sends to rank `to`, which receives the same number of elements; complete when the buffer may be reused.
template <class T, class Space = Host>
struct Send {
  static constexpr CollectiveKind kind = CollectiveKind::send;
  static constexpr std::string_view name = name_of(kind);
  using element = T;
  using space = Space;
  Span<const T, Space> buffer{};
  int to = 0;
  int tag = 0;
  std::source_location location{};
  std::uint64_t lengths = 0;
};

/// Receives the next message of that tag from rank `from`.
template <class T, class Space = Host>
struct Receive {
  static constexpr CollectiveKind kind = CollectiveKind::receive;
  static constexpr std::string_view name = name_of(kind);
  using element = T;
  using space = Space;
  Span<T, Space> buffer{};
  int from = 0;
  int tag = 0;
  std::source_location location{};
  std::uint64_t lengths = 0;
};

/// Sends to one rank and receives from another (or the same) at the same time, so a ring of ranks does not deadlock.
template <class T, class Space = Host>
struct SendReceive {
  static constexpr CollectiveKind kind = CollectiveKind::send_receive;
  static constexpr std::string_view name = name_of(kind);
  using element = T;
  using space = Space;
  Span<const T, Space> send{};
  int to = 0;
  Span<T, Space> receive{};
  int from = 0;
  int tag = 0;
  std::source_location location{};
};

/// Complete when every rank has entered it.
template <class Space = Host>
struct Barrier {
  static constexpr CollectiveKind kind = CollectiveKind::barrier;
  static constexpr std::string_view name = name_of(kind);
  using element = AnyElement;
  using space = Space;
  std::source_location location{};
  std::uint64_t lengths = 0;
  std::string_view label{};  ///< as in AllGather
};

/// Satisfied by the call types above.
template <class Call>
concept Collective = requires(const Call& call) {
  typename Call::element;
  typename Call::space;
  { Call::name } -> std::convertible_to<std::string_view>;
  { call.location } -> std::convertible_to<std::source_location>;
};

/// @name Erasure
/// Returns the call with its types as run-time values. Backends execute erased calls only.
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
  return {c.buffer, c.to, c.tag, c.location, c.lengths};
}
template <class T, class S>
[[nodiscard]] Receive<AnyElement, S> erase(const Receive<T, S>& c) noexcept {
  return {c.buffer, c.from, c.tag, c.location, c.lengths};
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

/// Satisfied by well-formed calls: the op reduces the elements, and the elements can be transferred.
template <class Call>
concept ErasableCall = Collective<Call> && requires(const Call& call) { erase(call); };

/// The erased type of a call.
template <ErasableCall Call>
using erased_t = decltype(erase(std::declval<const Call&>()));

}  // namespace calls

namespace detail {

using namespace calls;

/// Compile-time properties of an operation, for algorithms and checks.
template <Collective Call>
struct CallTraits {
  static constexpr CollectiveKind kind = Call::kind;
  /// Whether it is a point-to-point message instead of a collective.
  static constexpr bool message =
      kind == CollectiveKind::send || kind == CollectiveKind::receive || kind == CollectiveKind::send_receive;
  static constexpr bool reduces = requires(const Call& c) { c.op; };
  static constexpr bool rooted = requires(const Call& c) { c.root; };
  /// Whether only the root's buffer is sent.
  static constexpr bool root_sends = kind == CollectiveKind::broadcast || kind == CollectiveKind::scatter;
  /// Whether each rank sends a different block to each rank, instead of one buffer to all.
  static constexpr bool blockwise =
      kind == CollectiveKind::reduce_scatter || kind == CollectiveKind::all_to_all || kind == CollectiveKind::scatter;
  /// Whether the counts differ between ranks, so each rank needs those of its peers.
  static constexpr bool exchanges_counts =
      kind == CollectiveKind::gather || kind == CollectiveKind::scatter || kind == CollectiveKind::all_to_all;
};

}  // namespace detail

}  // namespace distx
