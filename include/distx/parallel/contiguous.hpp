// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <concepts>
#include <ranges>

#include "distx/comm/detail/arguments.hpp"

// How a user's array becomes a Span: what may stand for the elements of a collective, and whatever else has its
// elements side by side and says where they begin and how many.
namespace distx {

namespace detail {

template <class A>
concept GivesSpan = requires(A& array) {
  {
    array.span()
  } -> std::convertible_to<Span<typename decltype(array.span())::element_type, typename decltype(array.span())::space>>;
};
template <class A>
concept DataAndSize = requires(A& array) {
  requires std::is_pointer_v<decltype(array.data())>;
  { array.size() } -> std::convertible_to<std::size_t>;
};
/// A matrix that may be a part of another one.
template <class A>
concept Strided = DataAndSize<A> && requires(A& array) {
  { array.innerStride() == 1 } -> std::convertible_to<bool>;
  { array.outerStride() == array.innerSize() } -> std::convertible_to<bool>;
  { array.outerSize() > 1 } -> std::convertible_to<bool>;
};

template <class A>
constexpr auto contiguous(A& array) {
  if constexpr (GivesSpan<A> && !SpanLike<A>) {
    return array.span();
  } else if constexpr (SpanLike<A> || HostRange<A>) {
    return as_span(array);
  } else {
    if constexpr (Strided<A>)
      if (array.innerStride() != 1 || (array.outerSize() > 1 && array.outerStride() != array.innerSize()))
        throw MismatchError(
            "the matrix is a part of another one, with gaps between its columns or rows: pass one "
            "whose elements lie side by side",
            {.operation = "ref"});
    return Span<std::remove_pointer_t<decltype(array.data())>>(array.data(), static_cast<std::size_t>(array.size()));
  }
}

template <class A>
concept Contiguous = SpanLike<A> || GivesSpan<A> || HostRange<A> || DataAndSize<A>;

template <class A>
using contiguous_t = decltype(contiguous(std::declval<A&>()));
template <class A>
using contiguous_element_t = typename contiguous_t<A>::element_type;
template <class A>
using contiguous_space_t = typename contiguous_t<A>::space;

/// Passing one by value leaves its elements where they are; a temporary container would take them along.
template <class A>
concept Stays = std::is_lvalue_reference_v<A> || is_span<std::remove_cvref_t<A>> || !std::ranges::range<A> ||
                std::ranges::borrowed_range<A>;

}  // namespace detail

/// An array of numbers with fractions that may be written to and stays where it is: std::vector, std::array, std::span,
/// distx::Span, distx's own memory, an Eigen matrix or map, anything with `data()` and `size()`.
template <class A>
concept ParameterArray = detail::Contiguous<std::remove_reference_t<A>> && detail::Stays<A> &&
                         FloatingElement<detail::contiguous_element_t<std::remove_reference_t<A>>>;

}  // namespace distx
