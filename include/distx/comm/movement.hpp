// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/reductions.hpp"

// Collectives that move elements without computing.
namespace distx::inline DISTX_ABI {

/// Copies the root's `buffer` to `buffer` on every rank; all have the same length.
///
/// Collective over `comm` with the same root; blocks until this rank's buffer may be used. The root may return before
/// the others have joined: not a barrier. A list of buffers is copied item by item (coalesced).
/// @throws what `all_reduce` throws; InvalidArgument unless `root` is a rank; MismatchError if roots differ
template <class C, detail::OperandArgument Buffer>
void broadcast(C& comm, Buffer&& buffer, int root, detail::here location = detail::here::current()) {
  detail::execute(comm, detail::call_on<calls::Broadcast>(buffer, root, location));
}
/// Starts `broadcast` and returns its Pending; the buffers are borrowed until `wait` returns, or moved in. Collective.
template <class C, detail::OperandArgument Buffer>
[[nodiscard]] auto start_broadcast(C& comm, Buffer&& buffer, int root, detail::stream_of_t<C> after = {},
                                   detail::here location = detail::here::current()) {
  return detail::start_on(
      comm, after, [&](auto& s) { return detail::call_on<calls::Broadcast>(s, root, location); },
      std::forward<Buffer>(buffer));
}

/// Concatenates all ranks' `send` in rank order into `receive` on every rank: equal blocks, or `counts[r]` elements
/// from rank r.
///
/// Collective over `comm` with the same counts; blocks until `receive` is complete. `receive` has the elements of all
/// blocks; in place if `send` is this rank's block of `receive`. Lists of buffers, which take no counts, are gathered
/// item by item (coalesced).
/// @throws what `all_reduce` throws; MismatchError if counts differ
template <class C, detail::OperandArgument Send, detail::OperandArgument<Send> Receive>
void all_gather(C& comm, const Send& send, Receive&& receive, const detail::CountsOf<Send>& counts = {},
                detail::here location = detail::here::current()) {
  detail::execute(comm, detail::call_of<calls::AllGather>(send, receive, detail::Counts(counts), location));
}
/// Starts `all_gather` and returns its Pending; the buffers are borrowed until `wait` returns, or moved in. Collective.
template <class C, detail::OperandArgument Send, detail::OperandArgument<Send> Receive>
[[nodiscard]] auto start_all_gather(C& comm, Send&& send, Receive&& receive, detail::BorrowedCountsOf<Send> counts = {},
                                    detail::stream_of_t<C> after = {},
                                    detail::here location = detail::here::current()) {
  return detail::start_call<calls::AllGather>(comm, after, std::forward<Send>(send), std::forward<Receive>(receive),
                                              counts, location);
}

/// Sends block r of `send` to rank r, and receives one block from every rank, in rank order: equal blocks, or
/// `send_counts[r]` elements to rank r and `receive_counts[r]` elements from it.
///
/// Collective over `comm`; blocks until `receive` is complete and `send` may be changed. With equal blocks `send` and
/// `receive` have the same length, a multiple of the number of ranks, and may coincide (in place) on every rank or on
/// none. They do not overlap otherwise. Both counts are given or neither is. Lists of buffers, which take no counts,
/// are exchanged item by item (coalesced).
/// @throws what `all_reduce` throws; MismatchError if the call is in place on some ranks only, or if a rank sends
///         another number than its receiver expects
template <class C, detail::OperandArgument Send, detail::OperandArgument<Send> Receive>
void all_to_all(C& comm, const Send& send, Receive&& receive, const detail::CountsOf<Send>& send_counts = {},
                const detail::CountsOf<Send>& receive_counts = {}, detail::here location = detail::here::current()) {
  detail::execute(comm, detail::call_of<calls::AllToAll>(send, receive, detail::Counts(send_counts),
                                                         detail::Counts(receive_counts), location));
}
/// Starts `all_to_all` and returns its Pending; the buffers are borrowed until `wait` returns, or moved in. Collective.
template <class C, detail::OperandArgument Send, detail::OperandArgument<Send> Receive>
[[nodiscard]] auto start_all_to_all(C& comm, Send&& send, Receive&& receive,
                                    detail::BorrowedCountsOf<Send> send_counts = {},
                                    detail::BorrowedCountsOf<Send> receive_counts = {},
                                    detail::stream_of_t<C> after = {},
                                    detail::here location = detail::here::current()) {
  return detail::start_call<calls::AllToAll>(comm, after, std::forward<Send>(send), std::forward<Receive>(receive),
                                             send_counts, receive_counts, location);
}

/// Concatenates all ranks' `send` in rank order into the root's `receive`, which is unused and may be empty on other
/// ranks.
///
/// Collective over `comm` with the same root; blocks until this rank's part is complete; ranks other than the root may
/// return before all have joined. In place if the root's `send` is its block of `receive`. Equal blocks, or
/// `counts[r]` elements from rank r; only the root's counts are used. Lists of buffers, which take no counts, are
/// gathered item by item (coalesced).
/// @throws what `all_reduce` throws; InvalidArgument unless `root` is a rank; MismatchError if roots differ, or if a
///         rank sends another number than the root expects
template <class C, detail::OperandArgument Send, detail::OperandArgument<Send> Receive>
void gather(C& comm, const Send& send, Receive&& receive, int root, const detail::CountsOf<Send>& counts = {},
            detail::here location = detail::here::current()) {
  detail::execute(comm, detail::call_of<calls::Gather>(send, receive, root, detail::Counts(counts), location));
}
/// Starts `gather` and returns its Pending; the buffers are borrowed until `wait` returns, or moved in. Collective.
template <class C, detail::OperandArgument Send, detail::OperandArgument<Send> Receive>
[[nodiscard]] auto start_gather(C& comm, Send&& send, Receive&& receive, int root,
                                detail::BorrowedCountsOf<Send> counts = {}, detail::stream_of_t<C> after = {},
                                detail::here location = detail::here::current()) {
  return detail::start_call<calls::Gather>(comm, after, std::forward<Send>(send), std::forward<Receive>(receive), root,
                                           counts, location);
}

/// Copies block r of the root's `send` to rank r's `receive`; `send` is unused and may be empty on other ranks.
///
/// Collective over `comm` with the same root; blocks until this rank's part is complete: the root may return before the
/// others have joined. In place if the root's `receive` is its block of `send`. Equal blocks, or `counts[r]` elements
/// for rank r; only the root's counts are used. Lists of buffers, which take no counts, are scattered item by item
/// (coalesced).
/// @throws what `all_reduce` throws; InvalidArgument unless `root` is a rank; MismatchError if roots differ, or if a
///         rank expects another number than the root sends
template <class C, detail::OperandArgument Send, detail::OperandArgument<Send> Receive>
void scatter(C& comm, const Send& send, Receive&& receive, int root, const detail::CountsOf<Send>& counts = {},
             detail::here location = detail::here::current()) {
  detail::execute(comm, detail::call_of<calls::Scatter>(send, receive, root, detail::Counts(counts), location));
}
/// Starts `scatter` and returns its Pending; the buffers are borrowed until `wait` returns, or moved in. Collective.
template <class C, detail::OperandArgument Send, detail::OperandArgument<Send> Receive>
[[nodiscard]] auto start_scatter(C& comm, Send&& send, Receive&& receive, int root,
                                 detail::BorrowedCountsOf<Send> counts = {}, detail::stream_of_t<C> after = {},
                                 detail::here location = detail::here::current()) {
  return detail::start_call<calls::Scatter>(comm, after, std::forward<Send>(send), std::forward<Receive>(receive), root,
                                            counts, location);
}

}  // namespace distx::inline DISTX_ABI
