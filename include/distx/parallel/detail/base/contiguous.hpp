// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <concepts>
#include <iterator>
#include <type_traits>

#include "distx/comm/detail/arguments.hpp"

// Conversions of users' arrays to Span: everything that a collective takes, and all else with data() and size().
namespace distx::inline DISTX_ABI::detail {

// std::ranges::range without <ranges>, which takes a tenth of a second to compile.
namespace iteration {

using std::begin, std::end;

template <class A>
concept Range = requires(A& range) {
  { begin(range) != end(range) } -> std::convertible_to<bool>;
};
template <Range A>
using iterated_t = std::iter_value_t<decltype(begin(std::declval<A&>()))>;

}  // namespace iteration

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
/// A matrix that may be a block of another one.
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
        throw InvalidArgument(
            "the matrix is not contiguous: it is a block of another one; pass a matrix without gaps between its "
            "columns or rows",
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

/// An array whose elements outlive the expression: not a temporary container.
template <class A>
concept Stays = std::is_lvalue_reference_v<A> || is_span<std::remove_cvref_t<A>> || !iteration::Range<A> ||
                std::ranges::enable_borrowed_range<std::remove_cvref_t<A>>;

/// A writable array of floating-point elements, or of AnyElement, that stays in place.
template <class A>
concept ParameterArray = Contiguous<std::remove_reference_t<A>> && Stays<A> &&
                         (FloatingElement<contiguous_element_t<std::remove_reference_t<A>>> ||
                          std::same_as<contiguous_element_t<std::remove_reference_t<A>>, AnyElement>);

}  // namespace distx::inline DISTX_ABI::detail
