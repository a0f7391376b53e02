// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/detail/mistakes.hpp"

// Reductions. Each `start_…` function returns a Pending that borrows the buffers until it is waited for.
namespace distx::inline DISTX_ABI {

namespace detail {

using here = std::source_location;

/// Returns the receive side as the span that the call needs; fails to compile with a message if the types do not match.
template <class Send, class Receive>
constexpr auto into(Receive& receive) {
  using Wanted = Span<value_t<Send>, space_t<Send>>;
  if constexpr (std::convertible_to<span_t<Receive>, Wanted>) {
    return Wanted(as_span(receive));
  } else if constexpr (!std::is_same_v<value_t<Send>, value_t<Receive>>) {
    static_assert(std::is_same_v<value_t<Send>, value_t<Receive>>,
                  "distx: send and receive have elements of two types");
  } else if constexpr (std::is_const_v<typename span_t<Receive>::element_type>) {
    static_assert(!std::is_const_v<typename span_t<Receive>::element_type>,
                  "distx: the buffer to receive into is const");
  } else {
    static_assert(std::is_same_v<space_t<Send>, space_t<Receive>>,
                  "distx: send and receive are in different memory spaces");
  }
  if constexpr (!std::convertible_to<span_t<Receive>, Wanted>) return Wanted();
}

template <class Send, class Receive, class Op>
auto all_reduce_call(Send& send, Receive& receive, Op op, const here& location) {
  return AllReduce<value_t<Send>, Op, space_t<Send>>{as_const(as_span(send)), into<Send>(receive), op, location};
}
template <class Send, class Receive, class Op>
auto reduce_call(Send& send, Receive& receive, Op op, int root, const here& location) {
  return Reduce<value_t<Send>, Op, space_t<Send>>{as_const(as_span(send)), into<Send>(receive), op, root, location};
}
template <class Send, class Receive, class Op>
auto reduce_scatter_call(Send& send, Receive& receive, Op op, Counts counts, const here& location) {
  return ReduceScatter<value_t<Send>, Op, space_t<Send>>{as_const(as_span(send)), into<Send>(receive), op, counts,
                                                         location};
}

}  // namespace detail

/// Reduces `send` across all ranks of `comm` and writes the result to `receive` on every rank.
///
/// Collective over `comm`; blocks until `receive` is complete. `send` and `receive` have the same length on every rank
/// and either coincide (in place) or do not overlap. `threads` and `shm` combine operands in rank order.
///
/// @param op `distx::sum`, `product`, `min`, `max`, `average` (floating-point elements only), or a custom op
/// @throws InvalidArgument on this rank if an argument is invalid
/// @throws MismatchError on every rank if length, element type or op differ between ranks
/// @throws TimeoutError, RevokedError, RankFailure if a peer does not join in time, gives up, or fails
template <class C, SpanArgument Send, SpanArgument Receive, class Op>
void all_reduce(C& comm, const Send& send, Receive&& receive, Op op, detail::here location = detail::here::current()) {
  detail::execute(comm, detail::all_reduce_call(send, receive, op, location));
}
/// Reduces `buffer` across all ranks, in place.
template <class C, SpanArgument Buffer, class Op>
void all_reduce(C& comm, Buffer&& buffer, Op op, detail::here location = detail::here::current()) {
  detail::execute(comm, detail::all_reduce_call(buffer, buffer, op, location));
}
/// Starts `all_reduce` and returns its Pending; the buffers are borrowed until `wait` returns, or moved in. Collective.
template <class C, SpanArgument Send, SpanArgument Receive, class Op>
[[nodiscard]] auto start_all_reduce(C& comm, Send&& send, Receive&& receive, Op op, detail::stream_of_t<C> after = {},
                                    detail::here location = detail::here::current()) {
  return detail::start_on(
      comm, after, [&](auto& s, auto& r) { return detail::all_reduce_call(s, r, op, location); },
      std::forward<Send>(send), std::forward<Receive>(receive));
}
template <class C, SpanArgument Buffer, class Op>
[[nodiscard]] auto start_all_reduce(C& comm, Buffer&& buffer, Op op, detail::stream_of_t<C> after = {},
                                    detail::here location = detail::here::current()) {
  return detail::start_on(
      comm, after, [&](auto& s) { return detail::all_reduce_call(s, s, op, location); }, std::forward<Buffer>(buffer));
}

/// Reduces `send` across all ranks of `comm` into the root's `receive`; on other ranks `receive` is unused and may be
/// empty.
///
/// Collective over `comm` with the same root; blocks until this rank's part is complete; ranks other than the root may
/// return before all have joined. `send` has the same length on every rank, and so has the root's `receive`: both
/// coincide (in place) or do not overlap.
/// @throws what `all_reduce` throws; InvalidArgument unless `root` is a rank; MismatchError if roots differ
template <class C, SpanArgument Send, SpanArgument Receive, class Op>
void reduce(C& comm, const Send& send, Receive&& receive, Op op, int root,
            detail::here location = detail::here::current()) {
  detail::execute(comm, detail::reduce_call(send, receive, op, root, location));
}
/// Reduces `buffer` across all ranks, in place at the root.
template <class C, SpanArgument Buffer, class Op>
void reduce(C& comm, Buffer&& buffer, Op op, int root, detail::here location = detail::here::current()) {
  detail::execute(comm, detail::reduce_call(buffer, buffer, op, root, location));
}
/// Starts `reduce` and returns its Pending; the buffers are borrowed until `wait` returns, or moved in. Collective.
template <class C, SpanArgument Send, SpanArgument Receive, class Op>
[[nodiscard]] auto start_reduce(C& comm, Send&& send, Receive&& receive, Op op, int root,
                                detail::stream_of_t<C> after = {}, detail::here location = detail::here::current()) {
  return detail::start_on(
      comm, after, [&](auto& s, auto& r) { return detail::reduce_call(s, r, op, root, location); },
      std::forward<Send>(send), std::forward<Receive>(receive));
}

/// Reduces `send` across all ranks of `comm` and writes block r of the result to rank r's `receive`: equal blocks, or
/// `counts[r]` elements.
///
/// Collective over `comm` with the same counts; blocks until `receive` is complete. `send` has the elements of all
/// blocks, and `receive` those of this rank's; in place if `receive` is that block of `send`.
/// @throws what `all_reduce` throws; MismatchError if counts differ
template <class C, SpanArgument Send, SpanArgument Receive, class Op>
void reduce_scatter(C& comm, const Send& send, Receive&& receive, Op op, const detail::BlockCounts& counts = {},
                    detail::here location = detail::here::current()) {
  detail::execute(comm, detail::reduce_scatter_call(send, receive, op, counts, location));
}
/// Starts `reduce_scatter` and returns its Pending; the buffers are borrowed until `wait` returns, or moved in.
/// Collective.
template <class C, SpanArgument Send, SpanArgument Receive, class Op>
[[nodiscard]] auto start_reduce_scatter(C& comm, Send&& send, Receive&& receive, Op op,
                                        detail::BorrowedCounts counts = {}, detail::stream_of_t<C> after = {},
                                        detail::here location = detail::here::current()) {
  return detail::start_on(
      comm, after, [&](auto& s, auto& r) { return detail::reduce_scatter_call(s, r, op, counts, location); },
      std::forward<Send>(send), std::forward<Receive>(receive));
}

}  // namespace distx::inline DISTX_ABI
