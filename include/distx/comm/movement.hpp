// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/reductions.hpp"

// Collectives that move elements without computing.
namespace distx::inline DISTX_ABI {

namespace detail {

template <class Buffer>
auto broadcast_call(Buffer& buffer, int root, const here& location) {
  return Broadcast<value_t<Buffer>, space_t<Buffer>>{into<Buffer>(buffer), root, location};
}
template <class Send, class Receive>
auto all_gather_call(Send& send, Receive& receive, Counts counts, const here& location) {
  return AllGather<value_t<Send>, space_t<Send>>{as_const(as_span(send)), into<Send>(receive), counts, location};
}
template <class Send, class Receive>
auto all_to_all_call(Send& send, Receive& receive, Counts send_counts, Counts receive_counts, const here& location) {
  return AllToAll<value_t<Send>, space_t<Send>>{as_const(as_span(send)), into<Send>(receive), send_counts,
                                                receive_counts, location};
}
template <class Send, class Receive>
auto gather_call(Send& send, Receive& receive, int root, Counts counts, const here& location) {
  return Gather<value_t<Send>, space_t<Send>>{as_const(as_span(send)), into<Send>(receive), root, counts, location};
}
template <class Send, class Receive>
auto scatter_call(Send& send, Receive& receive, int root, Counts counts, const here& location) {
  return Scatter<value_t<Send>, space_t<Send>>{as_const(as_span(send)), into<Send>(receive), root, counts, location};
}

}  // namespace detail

/// Copies the root's `buffer` to `buffer` on every rank; all have the same length.
///
/// Collective over `comm` with the same root; blocks until this rank's buffer may be used. The root may return before
/// the others have joined: not a barrier.
/// @throws what `all_reduce` throws; InvalidArgument unless `root` is a rank; MismatchError if roots differ
template <class C, SpanArgument Buffer>
void broadcast(C& comm, Buffer&& buffer, int root, detail::here location = detail::here::current()) {
  detail::execute(comm, detail::broadcast_call(buffer, root, location));
}
/// Starts `broadcast` and returns its Pending; the buffers are borrowed until `wait` returns, or moved in. Collective.
template <class C, SpanArgument Buffer>
[[nodiscard]] auto start_broadcast(C& comm, Buffer&& buffer, int root, detail::stream_of_t<C> after = {},
                                   detail::here location = detail::here::current()) {
  return detail::start_on(
      comm, after, [&](auto& s) { return detail::broadcast_call(s, root, location); }, std::forward<Buffer>(buffer));
}

/// Concatenates all ranks' `send` in rank order into `receive` on every rank: equal blocks, or `counts[r]` elements
/// from rank r.
///
/// Collective over `comm` with the same counts; blocks until `receive` is complete. `receive` has the elements of all
/// blocks; in place if `send` is this rank's block of `receive`.
/// @throws what `all_reduce` throws; MismatchError if counts differ
template <class C, SpanArgument Send, SpanArgument Receive>
void all_gather(C& comm, const Send& send, Receive&& receive, const detail::BlockCounts& counts = {},
                detail::here location = detail::here::current()) {
  detail::execute(comm, detail::all_gather_call(send, receive, counts, location));
}
/// Starts `all_gather` and returns its Pending; the buffers are borrowed until `wait` returns, or moved in. Collective.
template <class C, SpanArgument Send, SpanArgument Receive>
[[nodiscard]] auto start_all_gather(C& comm, Send&& send, Receive&& receive, detail::BorrowedCounts counts = {},
                                    detail::stream_of_t<C> after = {},
                                    detail::here location = detail::here::current()) {
  return detail::start_on(
      comm, after, [&](auto& s, auto& r) { return detail::all_gather_call(s, r, counts, location); },
      std::forward<Send>(send), std::forward<Receive>(receive));
}

/// Sends block r of `send` to rank r, and receives one block from every rank, in rank order; all blocks are equal.
///
/// Collective over `comm`; blocks until `receive` is complete and `send` may be changed. `send` and `receive` have the
/// same length, a multiple of the number of ranks; they coincide (in place) on every rank or on none, and do not
/// overlap otherwise.
/// @throws what `all_reduce` throws; MismatchError if the call is in place on some ranks only
template <class C, SpanArgument Send, SpanArgument Receive>
void all_to_all(C& comm, const Send& send, Receive&& receive, detail::here location = detail::here::current()) {
  detail::execute(comm, detail::all_to_all_call(send, receive, {}, {}, location));
}
/// Sends `send_counts[r]` elements to rank r and receives `receive_counts[r]` elements from it; never in place.
/// @throws what `all_reduce` throws; MismatchError if a rank sends another number than its receiver expects
template <class C, SpanArgument Send, SpanArgument Receive>
void all_to_all(C& comm, const Send& send, Receive&& receive, const detail::BlockCounts& send_counts,
                const detail::BlockCounts& receive_counts, detail::here location = detail::here::current()) {
  detail::execute(comm, detail::all_to_all_call(send, receive, send_counts, receive_counts, location));
}
/// Starts `all_to_all` and returns its Pending; the buffers are borrowed until `wait` returns, or moved in. Collective.
template <class C, SpanArgument Send, SpanArgument Receive>
[[nodiscard]] auto start_all_to_all(C& comm, Send&& send, Receive&& receive, detail::BorrowedCounts send_counts = {},
                                    detail::BorrowedCounts receive_counts = {}, detail::stream_of_t<C> after = {},
                                    detail::here location = detail::here::current()) {
  return detail::start_on(
      comm, after,
      [&](auto& s, auto& r) { return detail::all_to_all_call(s, r, send_counts, receive_counts, location); },
      std::forward<Send>(send), std::forward<Receive>(receive));
}

/// Concatenates all ranks' `send` in rank order into the root's `receive`, which is unused and may be empty on other
/// ranks.
///
/// Collective over `comm` with the same root; blocks until this rank's part is complete; ranks other than the root may
/// return before all have joined. In place if the root's `send` is its block of `receive`. Equal blocks, or
/// `counts[r]` elements from rank r; only the root's counts are used.
/// @throws what `all_reduce` throws; InvalidArgument unless `root` is a rank; MismatchError if roots differ, or if a
///         rank sends another number than the root expects
template <class C, SpanArgument Send, SpanArgument Receive>
void gather(C& comm, const Send& send, Receive&& receive, int root, const detail::BlockCounts& counts = {},
            detail::here location = detail::here::current()) {
  detail::execute(comm, detail::gather_call(send, receive, root, counts, location));
}
/// Starts `gather` and returns its Pending; the buffers are borrowed until `wait` returns, or moved in. Collective.
template <class C, SpanArgument Send, SpanArgument Receive>
[[nodiscard]] auto start_gather(C& comm, Send&& send, Receive&& receive, int root, detail::BorrowedCounts counts = {},
                                detail::stream_of_t<C> after = {}, detail::here location = detail::here::current()) {
  return detail::start_on(
      comm, after, [&](auto& s, auto& r) { return detail::gather_call(s, r, root, counts, location); },
      std::forward<Send>(send), std::forward<Receive>(receive));
}

/// Copies block r of the root's `send` to rank r's `receive`; `send` is unused and may be empty on other ranks.
///
/// Collective over `comm` with the same root; blocks until this rank's part is complete: the root may return before the
/// others have joined. In place if the root's `receive` is its block of `send`. Equal blocks, or `counts[r]` elements
/// for rank r; only the root's counts are used.
/// @throws what `all_reduce` throws; InvalidArgument unless `root` is a rank; MismatchError if roots differ, or if a
///         rank expects another number than the root sends
template <class C, SpanArgument Send, SpanArgument Receive>
void scatter(C& comm, const Send& send, Receive&& receive, int root, const detail::BlockCounts& counts = {},
             detail::here location = detail::here::current()) {
  detail::execute(comm, detail::scatter_call(send, receive, root, counts, location));
}
/// Starts `scatter` and returns its Pending; the buffers are borrowed until `wait` returns, or moved in. Collective.
template <class C, SpanArgument Send, SpanArgument Receive>
[[nodiscard]] auto start_scatter(C& comm, Send&& send, Receive&& receive, int root, detail::BorrowedCounts counts = {},
                                 detail::stream_of_t<C> after = {}, detail::here location = detail::here::current()) {
  return detail::start_on(
      comm, after, [&](auto& s, auto& r) { return detail::scatter_call(s, r, root, counts, location); },
      std::forward<Send>(send), std::forward<Receive>(receive));
}

}  // namespace distx::inline DISTX_ABI
