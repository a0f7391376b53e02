// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <exception>
#include <optional>
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

namespace detail {

template <class How, class C, class T, class S, class MakeCall>
auto run_list(How how, C& comm, std::vector<Span<const T, S>> sends, ListSide send_side,
              std::vector<Span<T, S>> receives, ListSide receive_side, bool in_place, std::string_view operation,
              const here& location, MakeCall&& make_call);

}  // namespace detail

/// The asynchronous calls of a list and the packed copies of its small items; `wait` unpacks them.
template <class P, class T, class S>
class PendingList {
 public:
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
  template <class How, class C, class U, class Space, class MakeCall>
  friend auto detail::run_list(How how, C& comm, std::vector<Span<const U, Space>> sends, detail::ListSide send_side,
                               std::vector<Span<U, Space>> receives, detail::ListSide receive_side, bool in_place,
                               std::string_view operation, const detail::here& location, MakeCall&& make_call);

  PendingList(detail::FusedList<T, S> list, Buffer<std::byte, S> packed)
      : list_(std::move(list)), packed_(std::make_shared<Buffer<std::byte, S>>(std::move(packed))) {}

  template <class C, class MakeCall>
  void start(C& comm, MakeCall&& make_call, typename S::stream after, bool in_place) {
    try {
      start_items(comm, make_call, after, in_place);
    } catch (const RevokedError&) {
      wait_for_all(std::exchange(pendings_, {}), [](P& pending) { pending.wait(); });
      throw;
    }
  }
  template <class C, class MakeCall>
  void start_items(C& comm, MakeCall&& make_call, typename S::stream after, bool in_place) {
    for (const auto item : list_.large())
      pendings_.push_back(detail::start(comm, make_call(list_.send(item), list_.receive(item)), after));
    if (!list_.fuses()) return;
    list_.pack(after, packed_->span(), in_place);
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

/// Tag types: whether a list runs blocking, or asynchronously after a stream.
template <class S>
struct Now {
  static constexpr bool blocking = true;
};
template <class S>
struct Later {
  static constexpr bool blocking = false;
  typename S::stream after;
};

template <class How, class C, class T, class S, class MakeCall>
auto run_list(How how, C& comm, std::vector<Span<const T, S>> sends, ListSide send_side,
              std::vector<Span<T, S>> receives, ListSide receive_side, bool in_place, std::string_view operation,
              const here& location, MakeCall&& make_call) {
  const ErrorContext context{.operation = operation,
                             .backend = comm.backend(),
                             .rank = comm.rank(),
                             .size = comm.size(),
                             .location = location};
  std::optional<FusedList<T, S>> list;
  try {
    list.emplace(std::move(sends), send_side, std::move(receives), receive_side, comm.size(), context);
  } catch (const InvalidArgument& error) {
    comm.revoke(RevocationReason::of(error).published());
    throw;
  }
  if constexpr (How::blocking) {
    for (const auto item : list->large()) execute(comm, make_call(list->send(item), list->receive(item)));
    if (!list->fuses()) return;
    typename S::stream stream{};
    const Scratch<C> packed(comm, list->fused_bytes());
    list->pack(stream, packed.span(), in_place);
    execute(comm, list->fused_call(make_call));
    list->unpack(stream);
  } else {
    using P = decltype(start(comm, list->fused_call(make_call), how.after));
    Buffer<std::byte, S> packed(list->fused_bytes());
    PendingList<P, T, S> pending(std::move(*list), std::move(packed));
    pending.start(comm, make_call, how.after, in_place);
    return pending;
  }
}

template <class A>
auto const_list(A& argument) {
  using Item = span_t<range_element_t<A>>;
  std::vector<Span<const typename Item::value_type, typename Item::space>> list;
  for (auto& item : std::span(argument)) list.push_back(as_const(as_span(item)));
  return list;
}

template <class A>
using list_value_t = value_t<range_element_t<A>>;
template <class A>
using list_space_t = space_t<range_element_t<A>>;

template <class How, class C, class Send, class Receive, class Op>
auto all_reduce_list(How how, C& comm, Send& send, Receive& receive, Op op, const here& location) {
  return run_list(
      how, comm, const_list(send), ListSide::whole, as_list(receive), ListSide::whole, false, "all_reduce", location,
      [&](auto send_item, auto receive_item) { return all_reduce_call(send_item, receive_item, op, location); });
}
template <class How, class C, class Send, class Receive, class Op>
auto reduce_list(How how, C& comm, Send& send, Receive& receive, Op op, int root, const here& location) {
  return run_list(
      how, comm, const_list(send), ListSide::whole, as_list(receive),
      comm.rank() == root ? ListSide::whole : ListSide::nothing, false, "reduce", location,
      [&](auto send_item, auto receive_item) { return reduce_call(send_item, receive_item, op, root, location); });
}
template <class How, class C, class Send, class Receive, class Op>
auto reduce_scatter_list(How how, C& comm, Send& send, Receive& receive, Op op, const here& location) {
  return run_list(how, comm, const_list(send), ListSide::blocks, as_list(receive), ListSide::whole, false,
                  "reduce_scatter", location, [&](auto send_item, auto receive_item) {
                    return reduce_scatter_call(send_item, receive_item, op, {}, location);
                  });
}
template <class How, class C, class Send, class Receive>
auto all_gather_list(How how, C& comm, Send& send, Receive& receive, const here& location) {
  return run_list(
      how, comm, const_list(send), ListSide::whole, as_list(receive), ListSide::blocks, false, "all_gather", location,
      [&](auto send_item, auto receive_item) { return all_gather_call(send_item, receive_item, {}, location); });
}
template <class How, class C, class Send, class Receive>
auto all_to_all_list(How how, C& comm, Send& send, Receive& receive, const here& location) {
  return run_list(
      how, comm, const_list(send), ListSide::blocks, as_list(receive), ListSide::blocks, false, "all_to_all", location,
      [&](auto send_item, auto receive_item) { return all_to_all_call(send_item, receive_item, {}, {}, location); });
}
template <class How, class C, class Send, class Receive>
auto gather_list(How how, C& comm, Send& send, Receive& receive, int root, const here& location) {
  return run_list(
      how, comm, const_list(send), ListSide::whole, as_list(receive),
      comm.rank() == root ? ListSide::blocks : ListSide::nothing, false, "gather", location,
      [&](auto send_item, auto receive_item) { return gather_call(send_item, receive_item, root, {}, location); });
}
template <class How, class C, class Send, class Receive>
auto scatter_list(How how, C& comm, Send& send, Receive& receive, int root, const here& location) {
  return run_list(
      how, comm, const_list(send), comm.rank() == root ? ListSide::blocks : ListSide::nothing, as_list(receive),
      ListSide::whole, false, "scatter", location,
      [&](auto send_item, auto receive_item) { return scatter_call(send_item, receive_item, root, {}, location); });
}
template <class How, class C, class Receive>
auto broadcast_list(How how, C& comm, Receive& receive, int root, const here& location) {
  return run_list(how, comm, std::vector<Span<const list_value_t<Receive>, list_space_t<Receive>>>(), ListSide::nothing,
                  as_list(receive), ListSide::whole, comm.rank() == root, "broadcast", location,
                  [&](auto, auto receive_item) { return broadcast_call(receive_item, root, location); });
}
template <class How, class C, class Send>
auto send_list(How how, C& comm, Send& send, int to, int tag, const here& location) {
  return run_list(how, comm, const_list(send), ListSide::whole,
                  std::vector<Span<list_value_t<Send>, list_space_t<Send>>>(), ListSide::nothing, false, "send",
                  location, [&](auto send_item, auto) { return send_call(send_item, to, tag, location); });
}
template <class How, class C, class Receive>
auto receive_list(How how, C& comm, Receive& receive, int from, int tag, const here& location) {
  return run_list(how, comm, std::vector<Span<const list_value_t<Receive>, list_space_t<Receive>>>(), ListSide::nothing,
                  as_list(receive), ListSide::whole, false, "receive", location,
                  [&](auto, auto receive_item) { return receive_call(receive_item, from, tag, location); });
}

}  // namespace detail

/// Reduces each item of `send` across all ranks into the same item of `receive` on every rank. Collective; blocks.
template <class C, ListArgument SendList, ListArgument ReceiveList, class Op>
void all_reduce(C& comm, const SendList& send, ReceiveList&& receive, Op op,
                detail::here location = detail::here::current()) {
  detail::all_reduce_list(detail::Now<typename C::space>{}, comm, send, receive, op, location);
}
/// Starts `all_reduce` of a list and returns its Pending; the buffers are borrowed until `wait` returns. Collective.
template <class C, ListArgument SendList, ListArgument ReceiveList, class Op>
[[nodiscard]] auto start_all_reduce(C& comm, SendList&& send, ReceiveList&& receive, Op op,
                                    typename C::space::stream after = {},
                                    detail::here location = detail::here::current()) {
  detail::check_borrowed_lists<SendList, ReceiveList>();
  return detail::all_reduce_list(detail::Later<typename C::space>{after}, comm, send, receive, op, location);
}
/// Reduces each item of `list` across all ranks, in place. Collective; blocks.
template <class C, ListArgument List, class Op>
void all_reduce(C& comm, List&& list, Op op, detail::here location = detail::here::current()) {
  detail::all_reduce_list(detail::Now<typename C::space>{}, comm, list, list, op, location);
}
/// Reduces each item of `send` across all ranks into the same item of the root's `receive`. Collective; blocks.
template <class C, ListArgument SendList, ListArgument ReceiveList, class Op>
void reduce(C& comm, const SendList& send, ReceiveList&& receive, Op op, int root,
            detail::here location = detail::here::current()) {
  detail::reduce_list(detail::Now<typename C::space>{}, comm, send, receive, op, root, location);
}
/// Starts `reduce` of a list and returns its Pending; the buffers are borrowed until `wait` returns. Collective.
template <class C, ListArgument SendList, ListArgument ReceiveList, class Op>
[[nodiscard]] auto start_reduce(C& comm, SendList&& send, ReceiveList&& receive, Op op, int root,
                                typename C::space::stream after = {}, detail::here location = detail::here::current()) {
  detail::check_borrowed_lists<SendList, ReceiveList>();
  return detail::reduce_list(detail::Later<typename C::space>{after}, comm, send, receive, op, root, location);
}
/// Reduces each item of `list` across all ranks, in place at the root. Collective; blocks.
template <class C, ListArgument List, class Op>
void reduce(C& comm, List&& list, Op op, int root, detail::here location = detail::here::current()) {
  detail::reduce_list(detail::Now<typename C::space>{}, comm, list, list, op, root, location);
}
/// Reduces each item of `send` and writes block r of the result to the same item of rank r's `receive`. Collective;
/// blocks.
template <class C, ListArgument SendList, ListArgument ReceiveList, class Op>
void reduce_scatter(C& comm, const SendList& send, ReceiveList&& receive, Op op,
                    detail::here location = detail::here::current()) {
  detail::reduce_scatter_list(detail::Now<typename C::space>{}, comm, send, receive, op, location);
}
/// Starts `reduce_scatter` of a list and returns its Pending; the buffers are borrowed until `wait` returns.
/// Collective.
template <class C, ListArgument SendList, ListArgument ReceiveList, class Op>
[[nodiscard]] auto start_reduce_scatter(C& comm, SendList&& send, ReceiveList&& receive, Op op,
                                        typename C::space::stream after = {},
                                        detail::here location = detail::here::current()) {
  detail::check_borrowed_lists<SendList, ReceiveList>();
  return detail::reduce_scatter_list(detail::Later<typename C::space>{after}, comm, send, receive, op, location);
}
/// Concatenates each item of all ranks' `send` in rank order into the same item of `receive`. Collective; blocks.
template <class C, ListArgument SendList, ListArgument ReceiveList>
void all_gather(C& comm, const SendList& send, ReceiveList&& receive, detail::here location = detail::here::current()) {
  detail::all_gather_list(detail::Now<typename C::space>{}, comm, send, receive, location);
}
/// Starts `all_gather` of a list and returns its Pending; the buffers are borrowed until `wait` returns. Collective.
template <class C, ListArgument SendList, ListArgument ReceiveList>
[[nodiscard]] auto start_all_gather(C& comm, SendList&& send, ReceiveList&& receive,
                                    typename C::space::stream after = {},
                                    detail::here location = detail::here::current()) {
  detail::check_borrowed_lists<SendList, ReceiveList>();
  return detail::all_gather_list(detail::Later<typename C::space>{after}, comm, send, receive, location);
}
/// Sends block r of each item of `send` to rank r and receives its blocks in rank order. Collective; blocks.
template <class C, ListArgument SendList, ListArgument ReceiveList>
void all_to_all(C& comm, const SendList& send, ReceiveList&& receive, detail::here location = detail::here::current()) {
  detail::all_to_all_list(detail::Now<typename C::space>{}, comm, send, receive, location);
}
/// Starts `all_to_all` of a list and returns its Pending; the buffers are borrowed until `wait` returns. Collective.
template <class C, ListArgument SendList, ListArgument ReceiveList>
[[nodiscard]] auto start_all_to_all(C& comm, SendList&& send, ReceiveList&& receive,
                                    typename C::space::stream after = {},
                                    detail::here location = detail::here::current()) {
  detail::check_borrowed_lists<SendList, ReceiveList>();
  return detail::all_to_all_list(detail::Later<typename C::space>{after}, comm, send, receive, location);
}
/// Concatenates each item of all ranks' `send` in rank order into the root's `receive`. Collective; blocks.
template <class C, ListArgument SendList, ListArgument ReceiveList>
void gather(C& comm, const SendList& send, ReceiveList&& receive, int root,
            detail::here location = detail::here::current()) {
  detail::gather_list(detail::Now<typename C::space>{}, comm, send, receive, root, location);
}
/// Starts `gather` of a list and returns its Pending; the buffers are borrowed until `wait` returns. Collective.
template <class C, ListArgument SendList, ListArgument ReceiveList>
[[nodiscard]] auto start_gather(C& comm, SendList&& send, ReceiveList&& receive, int root,
                                typename C::space::stream after = {}, detail::here location = detail::here::current()) {
  detail::check_borrowed_lists<SendList, ReceiveList>();
  return detail::gather_list(detail::Later<typename C::space>{after}, comm, send, receive, root, location);
}
/// Writes block r of each item of the root's `send` to the same item of rank r's `receive`. Collective; blocks.
template <class C, ListArgument SendList, ListArgument ReceiveList>
void scatter(C& comm, const SendList& send, ReceiveList&& receive, int root,
             detail::here location = detail::here::current()) {
  detail::scatter_list(detail::Now<typename C::space>{}, comm, send, receive, root, location);
}
/// Starts `scatter` of a list and returns its Pending; the buffers are borrowed until `wait` returns. Collective.
template <class C, ListArgument SendList, ListArgument ReceiveList>
[[nodiscard]] auto start_scatter(C& comm, SendList&& send, ReceiveList&& receive, int root,
                                 typename C::space::stream after = {},
                                 detail::here location = detail::here::current()) {
  detail::check_borrowed_lists<SendList, ReceiveList>();
  return detail::scatter_list(detail::Later<typename C::space>{after}, comm, send, receive, root, location);
}
/// Copies each item of the root's list to every rank. Collective; blocks.
template <class C, ListArgument ReceiveList>
void broadcast(C& comm, ReceiveList&& receive, int root, detail::here location = detail::here::current()) {
  detail::broadcast_list(detail::Now<typename C::space>{}, comm, receive, root, location);
}
/// Starts `broadcast` of a list and returns its Pending; the buffers are borrowed until `wait` returns. Collective.
template <class C, ListArgument ReceiveList>
[[nodiscard]] auto start_broadcast(C& comm, ReceiveList&& receive, int root, typename C::space::stream after = {},
                                   detail::here location = detail::here::current()) {
  detail::check_borrowed_lists<ReceiveList>();
  return detail::broadcast_list(detail::Later<typename C::space>{after}, comm, receive, root, location);
}
/// Sends the items of a list to rank `to`, which receives them as a list. Blocks until the buffers may be reused.
template <class C, ListArgument SendList>
void send(C& comm, const SendList& send, int to, int tag = 0, detail::here location = detail::here::current()) {
  detail::send_list(detail::Now<typename C::space>{}, comm, send, to, tag, location);
}
/// Starts `send` of a list and returns its Pending; the buffers are borrowed until `wait` returns.
template <class C, ListArgument SendList>
[[nodiscard]] auto start_send(C& comm, SendList&& send, int to, int tag = 0, typename C::space::stream after = {},
                              detail::here location = detail::here::current()) {
  detail::check_borrowed_lists<SendList>();
  return detail::send_list(detail::Later<typename C::space>{after}, comm, send, to, tag, location);
}
/// Receives a list from rank `from`, which sends items of the same lengths. Blocks until complete.
template <class C, ListArgument ReceiveList>
void receive(C& comm, ReceiveList&& receive, int from, int tag = 0, detail::here location = detail::here::current()) {
  detail::receive_list(detail::Now<typename C::space>{}, comm, receive, from, tag, location);
}
/// Starts `receive` of a list and returns its Pending; the buffers are borrowed until `wait` returns.
template <class C, ListArgument ReceiveList>
[[nodiscard]] auto start_receive(C& comm, ReceiveList&& receive, int from, int tag = 0,
                                 typename C::space::stream after = {},
                                 detail::here location = detail::here::current()) {
  detail::check_borrowed_lists<ReceiveList>();
  return detail::receive_list(detail::Later<typename C::space>{after}, comm, receive, from, tag, location);
}

}  // namespace distx::inline DISTX_ABI
