// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/detail/base/contiguous.hpp"
#include "distx/parallel/parameter.hpp"
#include "distx/parallel/parameter_ref.hpp"

// What kinds of arguments the calls of a training have.
namespace distx::detail {

template <class A>
inline constexpr bool is_parameter_ref = false;
template <class T, class S>
inline constexpr bool is_parameter_ref<ParameterRef<T, S>> = true;
template <class A>
inline constexpr bool is_parameter = false;
template <class T, class S>
inline constexpr bool is_parameter<Parameter<T, S>> = true;

template <class A>
inline constexpr bool is_parameter_pointer =
    std::is_pointer_v<A> && is_parameter<std::remove_cv_t<std::remove_pointer_t<A>>>;

template <class A>
concept RangeOfRefs = iteration::Range<A> && is_parameter_ref<iteration::iterated_t<A>>;

/// The element type of a ParameterRef, a Parameter or a pointer to one.
template <class P>
struct parameter_element {
  static constexpr bool is_reduced_precision = true;  // unknown
};
template <template <class, class> class P, class T, class S>
struct parameter_element<P<T, S>> {
  static constexpr bool is_reduced_precision = !FloatingElement<T> || sizeof(T) == 2;
};

/// A range of parameters that are all of float or double.
template <class A>
concept RangeOfFullPrecision =
    iteration::Range<A> &&
    (is_parameter_ref<iteration::iterated_t<A>> || is_parameter<iteration::iterated_t<A>> ||
     is_parameter_pointer<iteration::iterated_t<A>>) &&
    !parameter_element<std::remove_cv_t<std::remove_pointer_t<iteration::iterated_t<A>>>>::is_reduced_precision;

/// A range of what `ready` takes.
template <class A>
concept ListOfReady = iteration::Range<A> && !FloatingElement<std::remove_cv_t<iteration::iterated_t<A>>>;

}  // namespace distx::detail
