// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cmath>
#include <limits>

#include "distx/tensor/ops/apply.hpp"
#include "distx/tensor/ops/rules.hpp"

namespace distx {

namespace detail {

/// Each row's exponentials divided by their sum: an operation of the host's memory.
template <class T>
void softmax_rows(HostStream, MatrixRef<const T> x, MatrixRef<T> out) {
  for (std::size_t row = 0; row < x.rows; ++row) {
    const T* const from = x.at(row, 0);
    T* const to = out.at(row, 0);
    T greatest = -std::numeric_limits<T>::infinity(), sum = 0;
    for (std::size_t i = 0; i < x.columns; ++i) greatest = std::max(greatest, from[i]);
    for (std::size_t i = 0; i < x.columns; ++i) sum += to[i] = std::exp(from[i] - greatest);
    for (std::size_t i = 0; i < x.columns; ++i) to[i] /= sum;
  }
}
template <class T>
void softmax_rows_backward(HostStream, MatrixRef<const T> y, MatrixRef<const T> gradient, MatrixRef<T> out) {
  for (std::size_t row = 0; row < y.rows; ++row) {
    const T *const value = y.at(row, 0), *const slope = gradient.at(row, 0);
    T* const to = out.at(row, 0);
    T along = 0;
    for (std::size_t i = 0; i < y.columns; ++i) along += value[i] * slope[i];
    for (std::size_t i = 0; i < y.columns; ++i) to[i] = value[i] * (slope[i] - along);
  }
}

template <class X>
void refuse_softmax() {
  using Missing = missing_case<Rowwise, X>;
  if constexpr (Missing::operands[0].is_partial())
    static_assert(is_ruled<Missing>,
                  "distx: softmax: the operand is Partial and softmax is not linear: redistribute it first");
  else
    static_assert(is_ruled<Missing>,
                  "distx: softmax: the operand is sharded in its last dimension, and softmax needs whole rows: "
                  "redistribute it to Replicated or to a Shard of another dimension");
}
template <class Y, class G>
void refuse_softmax_backward() {
  using Missing = missing_case<RowwiseBackward, Y, G>;
  if constexpr (!on_one_mesh<Y, G>)
    static_assert(on_one_mesh<Y, G>, "distx: softmax_backward: the operands lie on meshes of two types");
  else if constexpr (Missing::operands[0].is_partial() || Missing::operands[0].cuts_rows())
    static_assert(is_ruled<Missing>,
                  "distx: softmax_backward: the result is Partial or sharded in its last dimension: redistribute it "
                  "first");
  else
    static_assert(is_ruled<Missing>,
                  "distx: softmax_backward: the gradient does not lie as the result does: redistribute it to that "
                  "layout");
}

}  // namespace detail

/// Along the last dimension: exp(x) over its sum in the row.
template <class X>
  requires Applicable<Rowwise, X>
[[nodiscard]] auto softmax(const X& x) {
  return apply<Rowwise>(x, [](auto rows, auto out) {
    detail::softmax_rows(typename X::space::stream{}, detail::as_rows(rows), detail::as_rows(out));
  });
}
/// The gradient of the operand from the result y and its gradient, in which it is linear.
template <class Y, class G>
  requires Applicable<RowwiseBackward, Y, G>
[[nodiscard]] auto softmax_backward(const Y& y, const G& gradient) {
  return apply<RowwiseBackward>(y, gradient, [](auto values, auto slopes, auto out) {
    detail::softmax_rows_backward(typename Y::space::stream{}, detail::as_rows(values), detail::as_rows(slopes),
                                  detail::as_rows(out));
  });
}

template <class X>
  requires Operands<X>
auto softmax(const X&) -> detail::refused<X> {
  detail::refuse_softmax<X>();
  return detail::never<detail::refused<X>>();
}
template <class Y, class G>
  requires Operands<Y, G>
auto softmax_backward(const Y&, const G&) -> detail::refused<Y> {
  detail::refuse_softmax_backward<Y, G>();
  return detail::never<detail::refused<Y>>();
}

}  // namespace distx
