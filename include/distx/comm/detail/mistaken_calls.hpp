// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/arguments.hpp"

// Overloads for calls that are mistakes. None is defined: the type that each returns fails to compile with one message.
namespace distx {

namespace detail {

template <class C>
struct OnTemporary : NoPending {
  using communicator = C;
  static_assert(!Communicator<C>, "distx: the communicator is a temporary: give it a name first");
};
template <class C>
struct WithoutOp : NoPending {
  static_assert(!Communicator<C>, "distx: the op is missing: pass distx::sum, or another op, after the buffers");
  static_assert(Communicator<C>, "distx: the first argument is not a Communicator");
};

template <class A>
concept OperandArgument = SpanArgument<A> || ListArgument<A>;

}  // namespace detail

// A temporary communicator: for an lvalue, C is a reference and does not satisfy Communicator. `int`, because
// all_reduce<Axis>(tensor) names an axis.
template <int = 0, Communicator C>
detail::OnTemporary<C> all_reduce(C&&, const auto&...);
template <Communicator C>
detail::OnTemporary<C> start_all_reduce(C&&, const auto&...);
template <Communicator C>
detail::OnTemporary<C> reduce(C&&, const auto&...);
template <Communicator C>
detail::OnTemporary<C> start_reduce(C&&, const auto&...);
template <int = 0, Communicator C>
detail::OnTemporary<C> reduce_scatter(C&&, const auto&...);
template <Communicator C>
detail::OnTemporary<C> start_reduce_scatter(C&&, const auto&...);
template <Communicator C>
detail::OnTemporary<C> broadcast(C&&, const auto&...);
template <Communicator C>
detail::OnTemporary<C> start_broadcast(C&&, const auto&...);
template <int = 0, Communicator C>
detail::OnTemporary<C> all_gather(C&&, const auto&...);
template <Communicator C>
detail::OnTemporary<C> start_all_gather(C&&, const auto&...);
template <int = 0, Communicator C>
detail::OnTemporary<C> all_to_all(C&&, const auto&...);
template <Communicator C>
detail::OnTemporary<C> start_all_to_all(C&&, const auto&...);
template <Communicator C>
detail::OnTemporary<C> gather(C&&, const auto&...);
template <Communicator C>
detail::OnTemporary<C> start_gather(C&&, const auto&...);
template <Communicator C>
detail::OnTemporary<C> scatter(C&&, const auto&...);
template <Communicator C>
detail::OnTemporary<C> start_scatter(C&&, const auto&...);
template <Communicator C>
detail::OnTemporary<C> send(C&&, const auto&...);
template <Communicator C>
detail::OnTemporary<C> start_send(C&&, const auto&...);
template <Communicator C>
detail::OnTemporary<C> receive(C&&, const auto&...);
template <Communicator C>
detail::OnTemporary<C> start_receive(C&&, const auto&...);
template <Communicator C>
detail::OnTemporary<C> send_receive(C&&, const auto&...);
template <Communicator C>
detail::OnTemporary<C> start_send_receive(C&&, const auto&...);
template <Communicator C>
detail::OnTemporary<C> barrier(C&&, const auto&...);
template <Communicator C>
detail::OnTemporary<C> start_barrier(C&&, const auto&...);

// A forgotten op, of buffers or lists.
template <class C>
detail::WithoutOp<C> all_reduce(C&, const detail::OperandArgument auto&);
template <class C>
detail::WithoutOp<C> start_all_reduce(C&, const detail::OperandArgument auto&);
template <class C>
detail::WithoutOp<C> start_all_reduce(C&, const ListArgument auto&, const ListArgument auto&);
template <class C>
detail::WithoutOp<C> reduce(C&, const detail::OperandArgument auto&, int root);
template <class C>
detail::WithoutOp<C> start_reduce(C&, const detail::OperandArgument auto&, const detail::OperandArgument auto&,
                                  int root);
template <class C>
detail::WithoutOp<C> reduce_scatter(C&, const detail::OperandArgument auto&, const detail::OperandArgument auto&);
template <class C>
detail::WithoutOp<C> start_reduce_scatter(C&, const detail::OperandArgument auto&, const detail::OperandArgument auto&);

}  // namespace distx
