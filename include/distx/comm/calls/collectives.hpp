// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstddef>
#include <cstdint>
#include <source_location>
#include <span>
#include <string_view>

#include "distx/comm/calls/any_op.hpp"
#include "distx/core/error.hpp"
#include "distx/core/span.hpp"

// The collectives as values: the arguments of a communicator's `execute` and `start`. A call borrows its spans; `start`
// borrows them until the Pending is waited for. Counts are in elements, one per rank, and empty if all blocks are
// equal. `lengths` is compared across ranks: a hash of the item lengths of a coalesced list, or 0. `erase` turns each
// of them into one type, Call.
namespace distx::inline DISTX_ABI {

namespace detail {

/// The type of a call's op.
template <class C>
using call_op_t = decltype(C::op);

/// Takes the operands of a reduction where they are, and reduces them by itself.
class OperandConsumer {
 public:
  /// Takes `count` elements of every rank, from element `begin` of this rank's result on.
  /// @param operands  where they begin, in rank order
  virtual void consume(std::size_t begin, std::span<const void* const> operands, std::size_t count) = 0;

 protected:
  ~OperandConsumer() = default;
};

// Outside the function, which would copy the table in every call.
inline constexpr std::string_view call_names[] = {"all_reduce",     "reduce",     "broadcast",    "all_gather",
                                                  "reduce_scatter", "all_to_all", "gather",       "scatter",
                                                  "send",           "receive",    "send_receive", "barrier"};

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
  return detail::call_names[static_cast<std::size_t>(kind)];
}

/// The number of elements of each rank's block, in rank order; borrowed.
using Counts = std::span<const std::size_t>;

/// Every rank receives the reduction of all ranks' `send`. In place if both spans are the same.
template <class T, class Op, class Space = Host>
struct AllReduce {
  static constexpr CollectiveKind kind = CollectiveKind::all_reduce;
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
  using element = AnyElement;
  using space = Space;
  std::source_location location{};
  std::uint64_t lengths = 0;
  std::string_view label{};  ///< as in AllGather
};

/// Satisfied by the call types of this header.
template <class C>
concept Collective = requires(const C& call) {
  typename C::element;
  typename C::space;
  { call.kind } -> std::convertible_to<CollectiveKind>;
  { call.location } -> std::convertible_to<std::source_location>;
};

/// A rank, the number of ranks, and the backend's name.
struct RankOf {
  int rank = 0;
  int size = 1;
  std::string_view backend{};

  [[nodiscard]] ErrorContext context(std::string_view operation,
                                     const std::source_location& location = {}) const noexcept {
    return {operation, backend, rank, size, location};
  }
  template <Collective C>
  [[nodiscard]] ErrorContext context(const C& call) const noexcept {
    return context(name_of(call.kind), call.location);
  }
};

/// Satisfied by well-formed calls: the elements can be transferred, and the op, if there is one, reduces them.
template <class C>
concept ErasableCall =
    Collective<C> && (std::same_as<typename C::element, AnyElement> || Transferable<typename C::element>) &&
    (!requires { typename detail::call_op_t<C>; } || std::same_as<detail::call_op_t<C>, AnyOp> ||
     ReductionOp<detail::call_op_t<C>, typename C::element>);

/// A collective whose element type and op are run-time values: what backends, wrapper communicators and records see.
/// Every well-formed call converts to it. Fields that its kind has no use for keep their defaults.
template <class Space = Host>
class Call {
 public:
  using element = AnyElement;
  using space = Space;

  Call() = default;
  template <ErasableCall C>
    requires(!std::same_as<C, Call> && std::same_as<typename C::space, Space>)
  Call(const C& c) noexcept : kind(C::kind), location(c.location) {  // NOLINT(google-explicit-constructor): an argument
    if constexpr (requires { c.buffer; }) {
      if constexpr (C::kind != CollectiveKind::receive) send = c.buffer;
      if constexpr (C::kind != CollectiveKind::send) receive = c.buffer;
    }
    if constexpr (requires { c.send; }) {
      send = c.send;
      receive = c.receive;
    }
    if constexpr (requires { c.op; }) {
      if constexpr (std::same_as<detail::call_op_t<C>, AnyOp>)
        op = c.op;
      else
        op = AnyOp::make<typename C::element>(c.op);
    }
    if constexpr (requires { c.root; }) root = c.root;
    if constexpr (requires { c.to; }) to = c.to;
    if constexpr (requires { c.from; }) from = c.from;
    if constexpr (requires { c.tag; }) tag = c.tag;
    if constexpr (requires { c.counts; }) counts = c.counts;
    if constexpr (requires { c.send_counts; }) {
      counts = c.send_counts;
      receive_counts = c.receive_counts;
    }
    if constexpr (requires { c.lengths; }) lengths = c.lengths;
    if constexpr (requires { c.label; }) label = c.label;
    if constexpr (requires { c.consumer; }) consumer = c.consumer;
  }

  CollectiveKind kind = CollectiveKind::barrier;
  Span<const AnyElement, Space> send{};
  Span<AnyElement, Space> receive{};  ///< a broadcast's buffer is `send` as well
  AnyOp op{};
  int root = 0;
  int to = -1;
  int from = -1;
  int tag = 0;
  Counts counts{};  ///< of an all_to_all: of the blocks that are sent
  Counts receive_counts{};
  std::source_location location{};
  std::uint64_t lengths = 0;
  std::string_view label{};
  detail::OperandConsumer* consumer = nullptr;
};

/// Returns the call with its types as run-time values.
template <ErasableCall C>
[[nodiscard]] Call<typename C::space> erase(const C& call) noexcept {
  return call;
}

}  // namespace calls

namespace detail {

using namespace calls;

/// The properties of a kind of call that algorithms and checks branch on.
struct CallTraits {
  /// Whether it is a point-to-point message instead of a collective.
  bool message = false;
  bool reduces = false;
  bool rooted = false;
  /// Whether only the root's buffer is sent.
  bool root_sends = false;
  /// Whether each rank sends a different block to each rank, instead of one buffer to all.
  bool blockwise = false;
  /// Whether the counts differ between ranks, so each rank needs those of its peers.
  bool exchanges_counts = false;
  /// Whether `receive` has the type, and the number of elements that all ranks agree on; otherwise `send` has them.
  bool by_receive = false;
  /// Whether all ranks pass the same number of elements, unless they pass counts.
  bool same_count = false;
};

// Outside the function, which would copy the table in every call.
inline constexpr CallTraits call_traits[] = {
    /* all_reduce */ {.reduces = true, .same_count = true},
    /* reduce */ {.reduces = true, .rooted = true, .same_count = true},
    /* broadcast */ {.rooted = true, .root_sends = true, .same_count = true},
    /* all_gather */ {.same_count = true},
    /* reduce_scatter */ {.reduces = true, .blockwise = true, .by_receive = true, .same_count = true},
    /* all_to_all */ {.blockwise = true, .exchanges_counts = true, .same_count = true},
    /* gather */ {.rooted = true, .exchanges_counts = true},
    /* scatter */
    {.rooted = true, .root_sends = true, .blockwise = true, .exchanges_counts = true, .by_receive = true},
    /* send */ {.message = true, .same_count = true},
    /* receive */ {.message = true, .by_receive = true, .same_count = true},
    /* send_receive */ {.message = true},
    /* barrier */ {.same_count = true},
};

[[nodiscard]] constexpr const CallTraits& traits_of(CollectiveKind kind) noexcept {
  return call_traits[static_cast<std::size_t>(kind)];
}

/// Calls `f` with the span whose type, and number of elements where all ranks pass the same, the ranks compare.
template <MemorySpace Space, class F>
auto with_compared_span(const Call<Space>& call, F&& f) noexcept {
  return traits_of(call.kind).by_receive ? f(call.receive) : f(call.send);
}

}  // namespace detail

}  // namespace distx::inline DISTX_ABI
