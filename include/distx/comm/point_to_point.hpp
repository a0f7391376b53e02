// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/reductions.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

template <class Buffer>
auto send_call(Buffer& buffer, int to, int tag, const here& location) {
  return make_calls(from(buffer), {},
                    [=]<class T, class S>(Span<const T, S> s, Span<T, S>) { return Send<T, S>{s, to, tag, location}; });
}
template <class Out, class In>
auto send_receive_call(Out& send, int to, In& receive, int from, int tag, const here& location) {
  return SendReceive<value_t<Out>, space_t<Out>>{as_const(as_span(send)), to, into<Out>(receive), from, tag, location};
}

}  // namespace detail

/// Sends `buffer`, or a list of buffers (coalesced), to rank `to`. Blocks until it may be reused, possibly until the
/// receiver has joined.
template <class C, detail::OperandArgument Buffer>
void send(C& comm, const Buffer& buffer, int to, int tag = 0, detail::here location = detail::here::current()) {
  detail::execute(comm, detail::send_call(buffer, to, tag, location));
}
/// Starts `send` and returns its Pending; the buffers are borrowed until `wait` returns, or moved in.
template <class C, detail::OperandArgument Buffer>
[[nodiscard]] auto start_send(C& comm, Buffer&& buffer, int to, int tag = 0, detail::stream_of_t<C> after = {},
                              detail::here location = detail::here::current()) {
  return detail::start_on(
      comm, after, [&](auto& s) { return detail::send_call(s, to, tag, location); }, std::forward<Buffer>(buffer));
}

/// Receives the next message with this tag from rank `from`; the lengths must be equal. Blocks until it has arrived. A
/// list of buffers receives a list with the same lengths.
template <class C, detail::OperandArgument Buffer>
void receive(C& comm, Buffer&& buffer, int from, int tag = 0, detail::here location = detail::here::current()) {
  detail::execute(comm, detail::call_on<calls::Receive>(buffer, from, tag, location));
}
/// Starts `receive` and returns its Pending; the buffers are borrowed until `wait` returns, or moved in.
template <class C, detail::OperandArgument Buffer>
[[nodiscard]] auto start_receive(C& comm, Buffer&& buffer, int from, int tag = 0, detail::stream_of_t<C> after = {},
                                 detail::here location = detail::here::current()) {
  return detail::start_on(
      comm, after, [&](auto& s) { return detail::call_on<calls::Receive>(s, from, tag, location); },
      std::forward<Buffer>(buffer));
}

/// Sends and receives at the same time, so a ring of ranks does not deadlock. Blocks until both are complete.
template <class C, SpanArgument Out, SpanArgument In>
void send_receive(C& comm, const Out& send, int to, In&& receive, int from, int tag = 0,
                  detail::here location = detail::here::current()) {
  detail::execute(comm, detail::send_receive_call(send, to, receive, from, tag, location));
}
/// Starts `send_receive` and returns its Pending; the buffers are borrowed until `wait` returns, or moved in.
template <class C, SpanArgument Out, SpanArgument In>
[[nodiscard]] auto start_send_receive(C& comm, Out&& send, int to, In&& receive, int from, int tag = 0,
                                      detail::stream_of_t<C> after = {},
                                      detail::here location = detail::here::current()) {
  return detail::start_on(
      comm, after, [&](auto& s, auto& r) { return detail::send_receive_call(s, to, r, from, tag, location); },
      std::forward<Out>(send), std::forward<In>(receive));
}

/// Blocks until every rank has called it. Collective.
template <class C>
void barrier(C& comm, detail::here location = detail::here::current()) {
  detail::execute(comm, calls::Barrier<detail::space_of_t<C>>{location});
}
/// Starts `barrier` and returns its Pending. Collective.
template <class C>
[[nodiscard]] auto start_barrier(C& comm, detail::stream_of_t<C> after = {},
                                 detail::here location = detail::here::current()) {
  return detail::start(comm, calls::Barrier<detail::space_of_t<C>>{location}, after);
}

}  // namespace distx::inline DISTX_ABI
