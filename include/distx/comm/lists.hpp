// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <exception>
#include <utility>
#include <vector>

#include "distx/comm/detail/fused_list.hpp"
#include "distx/comm/movement.hpp"
#include "distx/comm/point_to_point.hpp"
#include "distx/core/detail/revocation_reason.hpp"

// Coalesced collectives: each takes lists of spans of one element type and computes the result of one call per item.
// Small items are packed into one message. The number of items and the length of item i are the same on every rank;
// lists that only the root uses may be empty on the other ranks. Errors are those of the call on one span, and
// a MismatchError if the lists differ in their lengths.
namespace distx::inline DISTX_ABI {

/// The asynchronous calls of a list and the packed copies of its small items; `wait` unpacks them.
template <class P, class T, class S>
class PendingList {
 public:
  /// Starts the calls that `make_call(send, receive)` returns for the items. For the functions `start_…` of lists.
  /// @throws the error of the item that failed, if another one's call is revoked because of it
  template <class C, class MakeCall>
  PendingList(detail::FusedList<T, S> list, C& comm, const MakeCall& make_call, typename S::stream after)
      : list_(std::move(list)), packed_(std::make_shared<Buffer<std::byte, S>>(list_.fused_bytes())) {
    try {
      start(comm, make_call, after);
    } catch (const RevokedError&) {
      wait_for_all(std::exchange(pendings_, {}), [](P& pending) { pending.wait(); });
      throw;
    }
  }
  PendingList(PendingList&&) noexcept = default;
  PendingList& operator=(PendingList&& other) noexcept {
    settle();
    list_ = std::move(other.list_);
    packed_ = std::move(other.packed_);
    pendings_ = std::exchange(other.pendings_, {});
    return *this;
  }
  ~PendingList() { settle(); }

  /// Blocks the host until all calls are complete, and unpacks the small items.
  void wait() {
    finish([](P& pending) { pending.wait(); }, {});
  }
  /// Orders work that is later enqueued on `stream` after all calls; blocks if the memory space is the host's.
  void wait(typename S::stream stream) {
    finish([&](P& pending) { pending.wait(stream); }, stream);
  }
  /// Returns whether all calls are complete. Never blocks.
  [[nodiscard]] bool test() {
    for (auto& pending : pendings_)
      if (!pending.test()) return false;
    return true;
  }

 private:
  template <class C, class MakeCall>
  void start(C& comm, const MakeCall& make_call, typename S::stream after) {
    for (const auto item : list_.large())
      pendings_.push_back(detail::start(comm, make_call(list_.send(item), list_.receive(item)), after));
    if (!list_.fuses()) return;
    list_.pack(after, packed_->span());
    pendings_.push_back(detail::start(comm, list_.fused_call(make_call), after));
    if constexpr (requires(P& pending) { pending.keep(packed_); }) pendings_.back().keep(packed_);
  }
  template <class Wait>
  void finish(Wait&& wait_for, typename S::stream stream) {
    if (pendings_.empty()) return;
    wait_for_all(std::exchange(pendings_, {}), wait_for);
    if (list_.fuses()) list_.unpack(stream);
  }
  /// One item may have found the reason, such as a mismatch, for which the others are revoked: throws the error of that
  /// item.
  template <class Wait>
  static void wait_for_all(std::vector<P> pendings, Wait&& wait_for) {
    std::exception_ptr revoked;
    for (auto& pending : pendings) {
      try {
        wait_for(pending);
      } catch (const RevokedError&) {
        if (revoked == nullptr) revoked = std::current_exception();
      }
    }
    if (revoked != nullptr) std::rethrow_exception(revoked);
  }

  void settle() noexcept {
    if (std::uncaught_exceptions() > uncaught_) pendings_.clear();  // this revokes the communicator
    try {
      wait();
    } catch (...) {
      pendings_.clear();  // the failed call has revoked the communicator: its next call throws the reason
    }
  }

  int uncaught_ = std::uncaught_exceptions();
  detail::FusedList<T, S> list_;
  std::shared_ptr<Buffer<std::byte, S>> packed_;
  std::vector<P> pendings_;  // last: the calls borrow the packed copies
};

namespace detail {

template <class A>
using SendItems = std::vector<Span<const value_t<range_element_t<A>>, space_t<range_element_t<A>>>>;
template <class A>
using ReceiveItems = std::vector<Span<value_t<range_element_t<A>>, space_t<range_element_t<A>>>>;

template <class A>
SendItems<A> const_list(A& argument) {
  SendItems<A> list;
  for (auto& item : std::span(argument)) list.push_back(as_const(as_span(item)));
  return list;
}

/// Returns the list of the calls that `make_call(send, receive)` returns for the items. If it is invalid, revokes the
/// communicator and throws.
template <class C, class T, class S, class MakeCall>
FusedList<T, S> fused_list(C& comm, std::vector<Span<const T, S>> sends, std::vector<Span<T, S>> receives,
                           const MakeCall& make_call) {
  const auto call = make_call(Span<const T, S>(), Span<T, S>());
  const ErrorContext context{name_of(call.kind), comm.backend(), comm.rank(), comm.size(), call.location};
  try {
    return {std::move(sends), std::move(receives), ListSides::of(call, comm.rank()), comm.size(), context};
  } catch (const InvalidArgument& error) {
    comm.revoke(RevocationReason::of(error).published());
    throw;
  }
}
template <class C, class T, class S, class MakeCall>
void run_list(C& comm, std::vector<Span<const T, S>> sends, std::vector<Span<T, S>> receives,
              const MakeCall& make_call) {
  auto list = fused_list(comm, std::move(sends), std::move(receives), make_call);
  for (const auto item : list.large()) execute(comm, make_call(list.send(item), list.receive(item)));
  if (!list.fuses()) return;
  typename S::stream stream{};
  const Scratch<C> packed(comm, list.fused_bytes());
  list.pack(stream, packed.span());
  execute(comm, list.fused_call(make_call));
  list.unpack(stream);
}
/// @tparam Lists  the caller's lists, as they are passed
template <class... Lists, class C, class T, class S, class MakeCall>
[[nodiscard]] auto start_list(C& comm, typename S::stream after, std::vector<Span<const T, S>> sends,
                              std::vector<Span<T, S>> receives, const MakeCall& make_call) {
  check_borrowed_lists<Lists...>();
  auto list = fused_list(comm, std::move(sends), std::move(receives), make_call);
  using P = decltype(start(comm, list.fused_call(make_call), after));
  return PendingList<P, T, S>(std::move(list), comm, make_call, after);
}

}  // namespace detail

/// Reduces each item of `send` across all ranks into the same item of `receive` on every rank. Collective; blocks.
template <class C, ListArgument SendList, ListArgument ReceiveList, class Op>
void all_reduce(C& comm, const SendList& send, ReceiveList&& receive, Op op,
                detail::here location = detail::here::current()) {
  detail::run_list(comm, detail::const_list(send), detail::as_list(receive),
                   [&](auto s, auto r) { return detail::all_reduce_call(s, r, op, location); });
}
/// Starts `all_reduce` of a list and returns its Pending; the buffers are borrowed until `wait` returns. Collective.
template <class C, ListArgument SendList, ListArgument ReceiveList, class Op>
[[nodiscard]] auto start_all_reduce(C& comm, SendList&& send, ReceiveList&& receive, Op op,
                                    typename C::space::stream after = {},
                                    detail::here location = detail::here::current()) {
  return detail::start_list<SendList, ReceiveList>(
      comm, after, detail::const_list(send), detail::as_list(receive),
      [&](auto s, auto r) { return detail::all_reduce_call(s, r, op, location); });
}
/// Reduces each item of `list` across all ranks, in place. Collective; blocks.
template <class C, ListArgument List, class Op>
void all_reduce(C& comm, List&& list, Op op, detail::here location = detail::here::current()) {
  all_reduce(comm, list, list, op, location);
}
/// Reduces each item of `send` across all ranks into the same item of the root's `receive`. Collective; blocks.
template <class C, ListArgument SendList, ListArgument ReceiveList, class Op>
void reduce(C& comm, const SendList& send, ReceiveList&& receive, Op op, int root,
            detail::here location = detail::here::current()) {
  detail::run_list(comm, detail::const_list(send), detail::as_list(receive),
                   [&](auto s, auto r) { return detail::reduce_call(s, r, op, root, location); });
}
/// Starts `reduce` of a list and returns its Pending; the buffers are borrowed until `wait` returns. Collective.
template <class C, ListArgument SendList, ListArgument ReceiveList, class Op>
[[nodiscard]] auto start_reduce(C& comm, SendList&& send, ReceiveList&& receive, Op op, int root,
                                typename C::space::stream after = {}, detail::here location = detail::here::current()) {
  return detail::start_list<SendList, ReceiveList>(
      comm, after, detail::const_list(send), detail::as_list(receive),
      [&](auto s, auto r) { return detail::reduce_call(s, r, op, root, location); });
}
/// Reduces each item of `list` across all ranks, in place at the root. Collective; blocks.
template <class C, ListArgument List, class Op>
void reduce(C& comm, List&& list, Op op, int root, detail::here location = detail::here::current()) {
  reduce(comm, list, list, op, root, location);
}
/// Reduces each item of `send` and writes block r of the result to the same item of rank r's `receive`. Collective;
/// blocks.
template <class C, ListArgument SendList, ListArgument ReceiveList, class Op>
void reduce_scatter(C& comm, const SendList& send, ReceiveList&& receive, Op op,
                    detail::here location = detail::here::current()) {
  detail::run_list(comm, detail::const_list(send), detail::as_list(receive),
                   [&](auto s, auto r) { return detail::reduce_scatter_call(s, r, op, {}, location); });
}
/// Starts `reduce_scatter` of a list and returns its Pending; the buffers are borrowed until `wait` returns.
/// Collective.
template <class C, ListArgument SendList, ListArgument ReceiveList, class Op>
[[nodiscard]] auto start_reduce_scatter(C& comm, SendList&& send, ReceiveList&& receive, Op op,
                                        typename C::space::stream after = {},
                                        detail::here location = detail::here::current()) {
  return detail::start_list<SendList, ReceiveList>(
      comm, after, detail::const_list(send), detail::as_list(receive),
      [&](auto s, auto r) { return detail::reduce_scatter_call(s, r, op, {}, location); });
}
/// Concatenates each item of all ranks' `send` in rank order into the same item of `receive`. Collective; blocks.
template <class C, ListArgument SendList, ListArgument ReceiveList>
void all_gather(C& comm, const SendList& send, ReceiveList&& receive, detail::here location = detail::here::current()) {
  detail::run_list(comm, detail::const_list(send), detail::as_list(receive),
                   [&](auto s, auto r) { return detail::all_gather_call(s, r, {}, location); });
}
/// Starts `all_gather` of a list and returns its Pending; the buffers are borrowed until `wait` returns. Collective.
template <class C, ListArgument SendList, ListArgument ReceiveList>
[[nodiscard]] auto start_all_gather(C& comm, SendList&& send, ReceiveList&& receive,
                                    typename C::space::stream after = {},
                                    detail::here location = detail::here::current()) {
  return detail::start_list<SendList, ReceiveList>(
      comm, after, detail::const_list(send), detail::as_list(receive),
      [&](auto s, auto r) { return detail::all_gather_call(s, r, {}, location); });
}
/// Sends block r of each item of `send` to rank r and receives its blocks in rank order. Collective; blocks.
template <class C, ListArgument SendList, ListArgument ReceiveList>
void all_to_all(C& comm, const SendList& send, ReceiveList&& receive, detail::here location = detail::here::current()) {
  detail::run_list(comm, detail::const_list(send), detail::as_list(receive),
                   [&](auto s, auto r) { return detail::all_to_all_call(s, r, {}, {}, location); });
}
/// Starts `all_to_all` of a list and returns its Pending; the buffers are borrowed until `wait` returns. Collective.
template <class C, ListArgument SendList, ListArgument ReceiveList>
[[nodiscard]] auto start_all_to_all(C& comm, SendList&& send, ReceiveList&& receive,
                                    typename C::space::stream after = {},
                                    detail::here location = detail::here::current()) {
  return detail::start_list<SendList, ReceiveList>(
      comm, after, detail::const_list(send), detail::as_list(receive),
      [&](auto s, auto r) { return detail::all_to_all_call(s, r, {}, {}, location); });
}
/// Concatenates each item of all ranks' `send` in rank order into the root's `receive`. Collective; blocks.
template <class C, ListArgument SendList, ListArgument ReceiveList>
void gather(C& comm, const SendList& send, ReceiveList&& receive, int root,
            detail::here location = detail::here::current()) {
  detail::run_list(comm, detail::const_list(send), detail::as_list(receive),
                   [&](auto s, auto r) { return detail::gather_call(s, r, root, {}, location); });
}
/// Starts `gather` of a list and returns its Pending; the buffers are borrowed until `wait` returns. Collective.
template <class C, ListArgument SendList, ListArgument ReceiveList>
[[nodiscard]] auto start_gather(C& comm, SendList&& send, ReceiveList&& receive, int root,
                                typename C::space::stream after = {}, detail::here location = detail::here::current()) {
  return detail::start_list<SendList, ReceiveList>(
      comm, after, detail::const_list(send), detail::as_list(receive),
      [&](auto s, auto r) { return detail::gather_call(s, r, root, {}, location); });
}
/// Writes block r of each item of the root's `send` to the same item of rank r's `receive`. Collective; blocks.
template <class C, ListArgument SendList, ListArgument ReceiveList>
void scatter(C& comm, const SendList& send, ReceiveList&& receive, int root,
             detail::here location = detail::here::current()) {
  detail::run_list(comm, detail::const_list(send), detail::as_list(receive),
                   [&](auto s, auto r) { return detail::scatter_call(s, r, root, {}, location); });
}
/// Starts `scatter` of a list and returns its Pending; the buffers are borrowed until `wait` returns. Collective.
template <class C, ListArgument SendList, ListArgument ReceiveList>
[[nodiscard]] auto start_scatter(C& comm, SendList&& send, ReceiveList&& receive, int root,
                                 typename C::space::stream after = {},
                                 detail::here location = detail::here::current()) {
  return detail::start_list<SendList, ReceiveList>(
      comm, after, detail::const_list(send), detail::as_list(receive),
      [&](auto s, auto r) { return detail::scatter_call(s, r, root, {}, location); });
}
/// Copies each item of the root's list to every rank. Collective; blocks.
template <class C, ListArgument ReceiveList>
void broadcast(C& comm, ReceiveList&& receive, int root, detail::here location = detail::here::current()) {
  detail::run_list(comm, detail::SendItems<ReceiveList>(), detail::as_list(receive),
                   [&](auto, auto r) { return detail::broadcast_call(r, root, location); });
}
/// Starts `broadcast` of a list and returns its Pending; the buffers are borrowed until `wait` returns. Collective.
template <class C, ListArgument ReceiveList>
[[nodiscard]] auto start_broadcast(C& comm, ReceiveList&& receive, int root, typename C::space::stream after = {},
                                   detail::here location = detail::here::current()) {
  return detail::start_list<ReceiveList>(comm, after, detail::SendItems<ReceiveList>(), detail::as_list(receive),
                                         [&](auto, auto r) { return detail::broadcast_call(r, root, location); });
}
/// Sends the items of a list to rank `to`, which receives them as a list. Blocks until the buffers may be reused.
template <class C, ListArgument SendList>
void send(C& comm, const SendList& send, int to, int tag = 0, detail::here location = detail::here::current()) {
  detail::run_list(comm, detail::const_list(send), detail::ReceiveItems<const SendList>(),
                   [&](auto s, auto) { return detail::send_call(s, to, tag, location); });
}
/// Starts `send` of a list and returns its Pending; the buffers are borrowed until `wait` returns.
template <class C, ListArgument SendList>
[[nodiscard]] auto start_send(C& comm, SendList&& send, int to, int tag = 0, typename C::space::stream after = {},
                              detail::here location = detail::here::current()) {
  return detail::start_list<SendList>(comm, after, detail::const_list(send), detail::ReceiveItems<SendList>(),
                                      [&](auto s, auto) { return detail::send_call(s, to, tag, location); });
}
/// Receives a list from rank `from`, which sends items of the same lengths. Blocks until complete.
template <class C, ListArgument ReceiveList>
void receive(C& comm, ReceiveList&& receive, int from, int tag = 0, detail::here location = detail::here::current()) {
  detail::run_list(comm, detail::SendItems<ReceiveList>(), detail::as_list(receive),
                   [&](auto, auto r) { return detail::receive_call(r, from, tag, location); });
}
/// Starts `receive` of a list and returns its Pending; the buffers are borrowed until `wait` returns.
template <class C, ListArgument ReceiveList>
[[nodiscard]] auto start_receive(C& comm, ReceiveList&& receive, int from, int tag = 0,
                                 typename C::space::stream after = {},
                                 detail::here location = detail::here::current()) {
  return detail::start_list<ReceiveList>(comm, after, detail::SendItems<ReceiveList>(), detail::as_list(receive),
                                         [&](auto, auto r) { return detail::receive_call(r, from, tag, location); });
}

}  // namespace distx::inline DISTX_ABI
