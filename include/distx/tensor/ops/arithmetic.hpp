// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/ops/elementwise.hpp"

// Sums, products and multiples, element by element.
namespace distx {

namespace elements {

struct Plus {
  static constexpr bool on_lanes = true;
  template <class V>
  constexpr V operator()(V x, V y) const {
    return static_cast<V>(x + y);
  }
};
struct Minus {
  static constexpr bool on_lanes = true;
  template <class V>
  constexpr V operator()(V x, V y) const {
    return static_cast<V>(x - y);
  }
};
struct Times {
  static constexpr bool on_lanes = true;
  template <class V>
  constexpr V operator()(V x, V y) const {
    return static_cast<V>(x * y);
  }
};
template <class T>
struct TimesFactor {
  static constexpr bool on_lanes = true;
  T factor;
  template <class V>
  constexpr V operator()(V x) const {
    return static_cast<V>(x * V(factor));
  }
};

}  // namespace elements

namespace detail {

template <class X, class Y>
void refuse_add() {
  using Missing = missing_case<Add, X, Y>;
  constexpr AxisPlace x = Missing::operands[0], y = Missing::operands[1];
  if constexpr (!on_one_mesh<X, Y>)
    static_assert(on_one_mesh<X, Y>, "distx: add: the operands lie on meshes of two types");
  else if constexpr (x.is_partial() != y.is_partial())
    static_assert(is_ruled<Missing>,
                  "distx: add: one operand is Partial and the other is not, so that it would be added on every rank: "
                  "redistribute the one that is Partial first");
  else if constexpr (x.is_partial())
    static_assert(is_ruled<Missing>,
                  "distx: add: the operands are Partial with another op than Sum: redistribute them first");
  else
    static_assert(is_ruled<Missing>,
                  "distx: add: one axis shards the operands differently: redistribute one to the other's layout");
}

template <class X, class Y>
void refuse_multiply() {
  using Missing = missing_case<Multiply, X, Y>;
  constexpr AxisPlace x = Missing::operands[0], y = Missing::operands[1];
  if constexpr (!on_one_mesh<X, Y>)
    static_assert(on_one_mesh<X, Y>, "distx: multiply: the operands lie on meshes of two types");
  else if constexpr (x.is_partial() && y.is_partial())
    static_assert(is_ruled<Missing>,
                  "distx: multiply: both operands are Partial over one axis, and a product of sums is not the sum of "
                  "the products: redistribute one of them to Replicated there");
  else if constexpr (x.is_partial() || y.is_partial())
    static_assert(is_ruled<Missing>,
                  "distx: multiply: one operand is Partial over an axis that shards the other, or with another op than "
                  "Sum: redistribute it to the other's layout");
  else
    static_assert(is_ruled<Missing>,
                  "distx: multiply: one axis shards the operands differently: redistribute one to the other's layout");
}

}  // namespace detail

/// x + y; both may be Partial over the same axes.
template <class X, class Y>
  requires Applicable<Add, X, Y>
[[nodiscard]] auto add(const X& x, const Y& y) {
  return detail::mapped<Add>(elements::Plus{}, x, y);
}
/// x - y.
template <class X, class Y>
  requires Applicable<Add, X, Y>
[[nodiscard]] auto subtract(const X& x, const Y& y) {
  return detail::mapped<Add>(elements::Minus{}, x, y);
}
/// The products of elements; one operand may be Partial where the other is replicated.
template <class X, class Y>
  requires Applicable<Multiply, X, Y>
[[nodiscard]] auto multiply(const X& x, const Y& y) {
  return detail::mapped<Multiply>(elements::Times{}, x, y);
}
/// factor * x.
template <class X>
  requires Applicable<LinearElementwise, X>
[[nodiscard]] auto scale(const X& x, std::type_identity_t<value_of<X>> factor) {
  return detail::mapped<LinearElementwise>(elements::TimesFactor<value_of<X>>{factor}, x);
}

template <class X, class Y>
  requires Operands<X, Y>
auto add(const X&, const Y&) -> detail::refused<X> {
  detail::refuse_add<X, Y>();
  return detail::never<detail::refused<X>>();
}
template <class X, class Y>
  requires Operands<X, Y>
auto subtract(const X&, const Y&) -> detail::refused<X> {
  detail::refuse_add<X, Y>();
  return detail::never<detail::refused<X>>();
}
template <class X, class Y>
  requires Operands<X, Y>
auto multiply(const X&, const Y&) -> detail::refused<X> {
  detail::refuse_multiply<X, Y>();
  return detail::never<detail::refused<X>>();
}
template <class X>
  requires Operands<X>
auto scale(const X&, std::type_identity_t<value_of<X>>) -> detail::refused<X> {
  static_assert(is_ruled<detail::missing_case<LinearElementwise, X>>,
                "distx: scale: the operand is Partial with another op than Sum: redistribute it first");
  return detail::never<detail::refused<X>>();
}

}  // namespace distx
