// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <type_traits>

#include "distx/comm/detail/arguments.hpp"

// The arguments that collectives accept as operands.
namespace distx::inline DISTX_ABI {

/// Satisfied by the elements of a collective: a Span, communicator memory, a contiguous host range, or one element; and
/// by pointers, std::vector<bool> and all other ranges, which then fail to compile with one message.
template <class A>
concept SpanArgument = detail::OneSpan<std::remove_reference_t<A>> || detail::MistakenSpan<std::remove_reference_t<A>>;

/// Satisfied by a list of operands: a range of SpanArguments.
template <class A>
concept ListArgument = detail::ListOfSpans<std::remove_reference_t<A>>;

namespace detail {

/// Satisfied by an operand of a collective whose other operand is `Other`: both are buffers, or both are lists.
template <class A, class Other = A>
concept OperandArgument = (SpanArgument<A> && SpanArgument<Other>) || (ListArgument<A> && ListArgument<Other>);

}  // namespace detail

}  // namespace distx::inline DISTX_ABI
