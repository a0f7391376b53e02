// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/detail/mistakes.hpp"
#include "distx/comm/lists.hpp"

// Reductions. Each `start_…` function returns a Pending that borrows the buffers until it is waited for. Wherever a
// function takes buffers, it takes lists of buffers, too: see lists.hpp.
namespace distx::inline DISTX_ABI {

/// Reduces `send` across all ranks of `comm` and writes the result to `receive` on every rank.
///
/// Collective over `comm`; blocks until `receive` is complete. `send` and `receive` have the same length on every rank
/// and either coincide (in place) or do not overlap. `threads` and `shm` combine operands in rank order. Lists of
/// buffers are reduced item by item (coalesced).
///
/// @param op `distx::sum`, `product`, `min`, `max`, `average` (floating-point elements only), or a custom op
/// @throws InvalidArgument on this rank if an argument is invalid
/// @throws MismatchError on every rank if length, element type or op differ between ranks
/// @throws TimeoutError, RevokedError, RankFailure if a peer does not join in time, gives up, or fails
template <class C, detail::OperandArgument Send, detail::OperandArgument<Send> Receive, class Op>
void all_reduce(C& comm, const Send& send, Receive&& receive, Op op, detail::here location = detail::here::current()) {
  detail::execute(comm, detail::call_of<calls::AllReduce, Op>(send, receive, op, location));
}
/// Reduces `buffer` across all ranks, in place.
template <class C, detail::OperandArgument Buffer, class Op>
void all_reduce(C& comm, Buffer&& buffer, Op op, detail::here location = detail::here::current()) {
  detail::execute(comm, detail::call_of<calls::AllReduce, Op>(buffer, buffer, op, location));
}
/// Starts `all_reduce` and returns its Pending; the buffers are borrowed until `wait` returns, or moved in. Collective.
template <class C, detail::OperandArgument Send, detail::OperandArgument<Send> Receive, class Op>
[[nodiscard]] auto start_all_reduce(C& comm, Send&& send, Receive&& receive, Op op, detail::stream_of_t<C> after = {},
                                    detail::here location = detail::here::current()) {
  return detail::start_call<calls::AllReduce, Op>(comm, after, std::forward<Send>(send), std::forward<Receive>(receive),
                                                  op, location);
}
template <class C, detail::OperandArgument Buffer, class Op>
[[nodiscard]] auto start_all_reduce(C& comm, Buffer&& buffer, Op op, detail::stream_of_t<C> after = {},
                                    detail::here location = detail::here::current()) {
  return detail::start_on(
      comm, after, [&](auto& s) { return detail::call_of<calls::AllReduce, Op>(s, s, op, location); },
      std::forward<Buffer>(buffer));
}

/// Reduces `send` across all ranks of `comm` into the root's `receive`; on other ranks `receive` is unused and may be
/// empty.
///
/// Collective over `comm` with the same root; blocks until this rank's part is complete; ranks other than the root may
/// return before all have joined. `send` has the same length on every rank, and so has the root's `receive`: both
/// coincide (in place) or do not overlap. Lists of buffers are reduced item by item (coalesced).
/// @throws what `all_reduce` throws; InvalidArgument unless `root` is a rank; MismatchError if roots differ
template <class C, detail::OperandArgument Send, detail::OperandArgument<Send> Receive, class Op>
void reduce(C& comm, const Send& send, Receive&& receive, Op op, int root,
            detail::here location = detail::here::current()) {
  detail::execute(comm, detail::call_of<calls::Reduce, Op>(send, receive, op, root, location));
}
/// Reduces `buffer` across all ranks, in place at the root.
template <class C, detail::OperandArgument Buffer, class Op>
void reduce(C& comm, Buffer&& buffer, Op op, int root, detail::here location = detail::here::current()) {
  detail::execute(comm, detail::call_of<calls::Reduce, Op>(buffer, buffer, op, root, location));
}
/// Starts `reduce` and returns its Pending; the buffers are borrowed until `wait` returns, or moved in. Collective.
template <class C, detail::OperandArgument Send, detail::OperandArgument<Send> Receive, class Op>
[[nodiscard]] auto start_reduce(C& comm, Send&& send, Receive&& receive, Op op, int root,
                                detail::stream_of_t<C> after = {}, detail::here location = detail::here::current()) {
  return detail::start_call<calls::Reduce, Op>(comm, after, std::forward<Send>(send), std::forward<Receive>(receive),
                                               op, root, location);
}

/// Reduces `send` across all ranks of `comm` and writes block r of the result to rank r's `receive`: equal blocks, or
/// `counts[r]` elements.
///
/// Collective over `comm` with the same counts; blocks until `receive` is complete. `send` has the elements of all
/// blocks, and `receive` those of this rank's; in place if `receive` is that block of `send`. Lists of buffers, which
/// take no counts, are reduced item by item (coalesced).
/// @throws what `all_reduce` throws; MismatchError if counts differ
template <class C, detail::OperandArgument Send, detail::OperandArgument<Send> Receive, class Op>
void reduce_scatter(C& comm, const Send& send, Receive&& receive, Op op, const detail::CountsOf<Send>& counts = {},
                    detail::here location = detail::here::current()) {
  detail::execute(comm, detail::call_of<calls::ReduceScatter, Op>(send, receive, op, detail::Counts(counts), location));
}
/// Starts `reduce_scatter` and returns its Pending; the buffers are borrowed until `wait` returns, or moved in.
/// Collective.
template <class C, detail::OperandArgument Send, detail::OperandArgument<Send> Receive, class Op>
[[nodiscard]] auto start_reduce_scatter(C& comm, Send&& send, Receive&& receive, Op op,
                                        detail::BorrowedCountsOf<Send> counts = {}, detail::stream_of_t<C> after = {},
                                        detail::here location = detail::here::current()) {
  return detail::start_call<calls::ReduceScatter, Op>(comm, after, std::forward<Send>(send),
                                                      std::forward<Receive>(receive), op, counts, location);
}

}  // namespace distx::inline DISTX_ABI
