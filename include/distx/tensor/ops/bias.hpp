// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/ops/apply.hpp"
#include "distx/tensor/ops/rules.hpp"

namespace distx {

namespace detail {

/// out = x with b added to each row: an operation of the host's memory.
template <class T>
void add_to_rows(HostStream, MatrixRef<const T> x, Span<const T> b, MatrixRef<T> out) {
  for (std::size_t row = 0; row < x.rows; ++row) {
    const T* const from = x.at(row, 0);
    T* const to = out.at(row, 0);
    for (std::size_t i = 0; i < x.columns; ++i) to[i] = from[i] + b[i];
  }
}
/// out = the sum of the rows, the first one first: an operation of the host's memory.
template <class T>
void sum_of_rows(HostStream stream, MatrixRef<const T> x, Span<T> out) {
  fill(stream, out, T{});
  for (std::size_t row = 0; row < x.rows; ++row) {
    const T* const from = x.at(row, 0);
    for (std::size_t i = 0; i < x.columns; ++i) out[i] += from[i];
  }
}

template <class X, class B>
void refuse_add_bias() {
  using Missing = missing_case<AddBias, X, B>;
  constexpr AxisPlace x = Missing::operands[0], b = Missing::operands[1];
  if constexpr (!on_one_mesh<X, B>)
    static_assert(on_one_mesh<X, B>, "distx: add_bias: the operands lie on meshes of two types");
  else if constexpr (x.is_partial())
    static_assert(is_ruled<Missing>,
                  "distx: add_bias: the operand is Partial, so that the bias would be added on every rank: "
                  "redistribute it first");
  else if constexpr (b.is_partial())
    static_assert(is_ruled<Missing>, "distx: add_bias: the bias is Partial: redistribute it first");
  else if constexpr (x.cuts_rows())
    static_assert(is_ruled<Missing>,
                  "distx: add_bias: the operand is sharded in its last dimension and the bias is not: redistribute the "
                  "bias to Shard<0, Axis>");
  else
    static_assert(is_ruled<Missing>,
                  "distx: add_bias: the bias is sharded and the operand's last dimension is not: redistribute the bias "
                  "to Replicated");
}

}  // namespace detail

/// x with b, which has one dimension, added to each row; the gradient of b is `sum_rows` of the result's.
template <class X, class B>
  requires Applicable<AddBias, X, B>
[[nodiscard]] auto add_bias(const X& x, const B& b) {
  return apply<AddBias>(x, b, [](auto rows, auto bias, auto out) {
    detail::add_to_rows(typename X::space::stream{}, detail::as_rows(rows), bias.values(), detail::as_rows(out));
  });
}
template <class X, class B>
  requires Operands<X, B>
auto add_bias(const X&, const B&) -> detail::refused<X> {
  detail::refuse_add_bias<X, B>();
  return detail::never<detail::refused<X>>();
}

/// The sum over all dimensions but the last.
template <class X>
  requires Applicable<SumRows, X>
[[nodiscard]] auto sum_rows(const X& x) {
  return apply<SumRows>(x, [](auto rows, auto out) {
    detail::sum_of_rows(typename X::space::stream{}, detail::as_rows(rows), out.values());
  });
}
template <class X>
  requires Operands<X>
auto sum_rows(const X&) -> detail::refused<X, 1> {
  static_assert(is_ruled<detail::missing_case<SumRows, X>>,
                "distx: sum_rows: the operand is Partial with another op than Sum: redistribute it first");
  return detail::never<detail::refused<X, 1>>();
}

}  // namespace distx
