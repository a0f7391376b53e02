// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/ops/elementwise.hpp"

namespace distx {

/// The arithmetic of one element, or of several at once.
namespace elements {

struct Relu {
  static constexpr bool on_lanes = true;
  template <class V>
  constexpr V operator()(V x) const {
    return select(x > V(0), x, V(0));
  }
};
struct ReluBackward {
  static constexpr bool on_lanes = true;
  template <class V>
  constexpr V operator()(V x, V gradient) const {
    return select(x > V(0), gradient, V(0));
  }
};

/// x · Φ(x), nearly: the form with the hyperbolic tangent (Hendrycks and Gimpel, 2016, arXiv 1606.08415).
template <class T>
struct Gelu {
  static constexpr T root = T(0.79788456080286535588);  // sqrt(2 / π)
  static constexpr T cubic = T(0.044715);
  constexpr T operator()(T x) const { return T(0.5) * x * (1 + std::tanh(root * x * (1 + cubic * x * x))); }
};
template <class T>
struct GeluBackward {
  constexpr T operator()(T x, T gradient) const {
    constexpr T root = Gelu<T>::root, cubic = Gelu<T>::cubic;
    const T t = std::tanh(root * x * (1 + cubic * x * x));
    return gradient * T(0.5) * (1 + t + x * (1 - t * t) * root * (1 + 3 * cubic * x * x));
  }
};

}  // namespace elements

namespace detail {

template <class X, class G>
void refuse_elementwise_backward() {
  using Missing = missing_case<ElementwiseBackward, X, G>;
  if constexpr (!on_one_mesh<X, G>)
    static_assert(on_one_mesh<X, G>, "distx: backward: the operand and the gradient lie on meshes of two types");
  else if constexpr (Missing::operands[0].is_partial())
    static_assert(is_ruled<Missing>,
                  "distx: backward: the operand is Partial and the function is not linear: redistribute it first");
  else
    static_assert(is_ruled<Missing>,
                  "distx: backward: the gradient does not lie as the operand does: redistribute it to that layout");
}

}  // namespace detail

/// @name Activations
/// `…_backward(x, gradient)` gives the gradient of x from that of the result, in which it is linear.
/// @{

/// max(x, 0).
template <class X>
  requires Applicable<Elementwise, X>
[[nodiscard]] auto relu(const X& x) {
  return detail::mapped<Elementwise>(elements::Relu{}, x);
}
template <class X, class G>
  requires Applicable<ElementwiseBackward, X, G>
[[nodiscard]] auto relu_backward(const X& x, const G& gradient) {
  return detail::mapped<ElementwiseBackward>(elements::ReluBackward{}, x, gradient);
}
/// @see elements::Gelu
template <class X>
  requires Applicable<Elementwise, X>
[[nodiscard]] auto gelu(const X& x) {
  return detail::mapped<Elementwise>(elements::Gelu<value_of<X>>{}, x);
}
template <class X, class G>
  requires Applicable<ElementwiseBackward, X, G>
[[nodiscard]] auto gelu_backward(const X& x, const G& gradient) {
  return detail::mapped<ElementwiseBackward>(elements::GeluBackward<value_of<X>>{}, x, gradient);
}
/// @}

template <class X>
  requires Operands<X>
auto relu(const X&) -> detail::refused<X> {
  static_assert(is_ruled<detail::missing_case<Elementwise, X>>,
                "distx: relu: the operand is Partial and relu is not linear: redistribute it first");
  return detail::never<detail::refused<X>>();
}
template <class X, class G>
  requires Operands<X, G>
auto relu_backward(const X&, const G&) -> detail::refused<X> {
  detail::refuse_elementwise_backward<X, G>();
  return detail::never<detail::refused<X>>();
}
template <class X>
  requires Operands<X>
auto gelu(const X&) -> detail::refused<X> {
  static_assert(is_ruled<detail::missing_case<Elementwise, X>>,
                "distx: gelu: the operand is Partial and gelu is not linear: redistribute it first");
  return detail::never<detail::refused<X>>();
}
template <class X, class G>
  requires Operands<X, G>
auto gelu_backward(const X&, const G&) -> detail::refused<X> {
  detail::refuse_elementwise_backward<X, G>();
  return detail::never<detail::refused<X>>();
}

}  // namespace distx
