// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/arguments.hpp"

// Overloads for calls that are mistakes. None is defined: the type that each returns fails to compile with one message.
namespace distx::inline DISTX_ABI {

namespace detail {

template <class C>
struct OnTemporary : NoPending {
  using communicator = C;
  static_assert(!Communicator<C>, "distx: the communicator is a temporary; give it a name first");
};
template <class C>
struct WithoutOp : NoPending {
  static_assert(!Communicator<C>, "distx: the op is missing; pass distx::sum, or another op, after the buffers");
  static_assert(Communicator<C>, "distx: the first argument is not a Communicator");
};

/// Satisfied by what is neither a buffer nor a list of buffers, such as one object of a class, or a bool. Not by
/// tensors, which have collectives along a dimension.
template <class A>
concept NotOperand = !OperandArgument<A> && !requires(const A& tensor) { tensor.extents(); };
template <class C>
struct OfNotOperand : NoPending {
  static_assert(!Communicator<C>,
                "distx: this argument is not a buffer; pass a contiguous range, such as a std::vector, or one number; "
                "one trivially copyable object of another type, such as a struct or a bool, is std::span(&object, 1)");
};

}  // namespace detail

// A temporary communicator: for an lvalue, C is a reference and does not satisfy Communicator. `int`, because
// all_reduce<Axis>(tensor) names an axis. And one object, or something else that is not a buffer, as the first buffer.
#define DISTX_MISTAKES_OF_ONE(function)                 \
  template <int = 0, Communicator C>                    \
  detail::OnTemporary<C> function(C&&, const auto&...); \
  template <Communicator C>                             \
  detail::OfNotOperand<C> function(C&, const detail::NotOperand auto&, const auto&...)
#define DISTX_MISTAKES(function)   \
  DISTX_MISTAKES_OF_ONE(function); \
  DISTX_MISTAKES_OF_ONE(start_##function)
// The same as the second buffer. Not of all_reduce and reduce, where it could be the op.
#define DISTX_MISTAKES_OF_SECOND(function)                                                                  \
  template <Communicator C>                                                                                 \
  detail::OfNotOperand<C> function(C&, const detail::OperandArgument auto&, const detail::NotOperand auto&, \
                                   const auto&...)
#define DISTX_MISTAKES_OF_TWO(function) \
  DISTX_MISTAKES(function);             \
  DISTX_MISTAKES_OF_SECOND(function);   \
  DISTX_MISTAKES_OF_SECOND(start_##function)
DISTX_MISTAKES(all_reduce);
DISTX_MISTAKES(reduce);
DISTX_MISTAKES_OF_TWO(reduce_scatter);
DISTX_MISTAKES(broadcast);
DISTX_MISTAKES_OF_TWO(all_gather);
DISTX_MISTAKES_OF_TWO(all_to_all);
DISTX_MISTAKES_OF_TWO(gather);
DISTX_MISTAKES_OF_TWO(scatter);
DISTX_MISTAKES(send);
DISTX_MISTAKES(receive);
DISTX_MISTAKES(send_receive);
#undef DISTX_MISTAKES
#undef DISTX_MISTAKES_OF_ONE
#undef DISTX_MISTAKES_OF_SECOND
#undef DISTX_MISTAKES_OF_TWO
template <Communicator C>
detail::OnTemporary<C> barrier(C&&, const auto&...);
template <Communicator C>
detail::OnTemporary<C> start_barrier(C&&, const auto&...);
template <Communicator C>
detail::OfNotOperand<C> send_receive(C&, const detail::OperandArgument auto&, int, const detail::NotOperand auto&,
                                     const auto&...);
template <Communicator C>
detail::OfNotOperand<C> start_send_receive(C&, const detail::OperandArgument auto&, int, const detail::NotOperand auto&,
                                           const auto&...);

// A forgotten op, of buffers or lists.
template <class C>
detail::WithoutOp<C> all_reduce(C&, const detail::OperandArgument auto&);
template <class C>
detail::WithoutOp<C> start_all_reduce(C&, const detail::OperandArgument auto&);
template <class C>
detail::WithoutOp<C> reduce(C&, const detail::OperandArgument auto&, int root);
template <class C>
detail::WithoutOp<C> start_reduce(C&, const detail::OperandArgument auto&, const detail::OperandArgument auto&,
                                  int root);
template <class C>
detail::WithoutOp<C> reduce_scatter(C&, const detail::OperandArgument auto&, const detail::OperandArgument auto&);
template <class C>
detail::WithoutOp<C> start_reduce_scatter(C&, const detail::OperandArgument auto&, const detail::OperandArgument auto&);

}  // namespace distx::inline DISTX_ABI
