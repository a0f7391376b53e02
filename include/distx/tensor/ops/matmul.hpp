// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/memory/local_matmul.hpp"
#include "distx/tensor/ops/apply.hpp"
#include "distx/tensor/ops/rules.hpp"

namespace distx {

/// A tensor whose transpose is an operand of `matmul`; borrows it.
template <DistributedTensor X>
struct Transposed {
  const X& tensor;
};
template <DistributedTensor X>
[[nodiscard]] Transposed<X> transposed(const X& x) {
  return {x};
}
template <DistributedTensor X>
void transposed(const X&& x) = delete;  // the operand would be gone

/// @name Whether matmul(x, w), matmul(x, transposed(w)), matmul(transposed(x), y) compile
/// They do where the operands lie so that no communication is needed.
/// @{
template <class X, class W>
concept Multipliable = Applicable<Matmul, X, W>;
template <class X, class W>
concept MultipliableTransposed = Applicable<MatmulTransposed, X, W>;
template <class X, class Y>
concept TransposedMultipliable = Applicable<TransposedMatmul, X, Y>;
/// @}

/// How matrices are multiplied by the space's own `local_matmul`; `eigen::product` is Eigen's way. One of yours takes
/// (result, left, right) as `MatrixRef`s, and the stream before them where streams order the work.
struct LocalProduct {
  template <class T, class Space>
  void operator()(typename Space::stream stream, MatrixRef<T, Space> out, MatrixRef<const T, Space> left,
                  MatrixRef<const T, Space> right) const {
    detail::multiply(stream, out, left, right);
  }
};

/// @name Products of matrices
/// Of a left operand with more than two dimensions, all but the last count as rows. Linear in each operand, so one of
/// them may be Partial. The gradients of y = matmul(x, w) are matmul(dy, transposed(w)) and matmul(transposed(x), dy).
/// @{
template <class X, class W, class Product = LocalProduct>
  requires Multipliable<X, W>
[[nodiscard]] auto matmul(const X& x, const W& w, const Product& multiplied = {}) {
  return apply<Matmul>(x, w, [&](auto stream, auto left, auto right, auto out) {
    detail::compute(stream, multiplied, detail::as_rows(out), detail::as_rows(left), detail::as_rows(right));
  });
}
template <class X, class W, class Product = LocalProduct>
  requires MultipliableTransposed<X, W>
[[nodiscard]] auto matmul(const X& x, Transposed<W> w, const Product& multiplied = {}) {
  return apply<MatmulTransposed>(x, w.tensor, [&](auto stream, auto left, auto right, auto out) {
    detail::compute(stream, multiplied, detail::as_rows(out), detail::as_rows(left),
                    detail::as_rows(right).transpose());
  });
}
template <class X, class Y, class Product = LocalProduct>
  requires TransposedMultipliable<X, Y>
[[nodiscard]] auto matmul(Transposed<X> x, const Y& y, const Product& multiplied = {}) {
  return apply<TransposedMatmul>(x.tensor, y, [&](auto stream, auto left, auto right, auto out) {
    detail::compute(stream, multiplied, detail::as_rows(out), detail::as_rows(left).transpose(),
                    detail::as_rows(right));
  });
}
/// @}

namespace detail {

template <class Rule, class X, class W>
void refuse_matmul() {
  using Missing = missing_case<Rule, X, W>;
  constexpr bool transposed_left = std::is_same_v<Rule, TransposedMatmul>;
  constexpr AxisPlace x = Missing::operands[0], w = Missing::operands[1];
  constexpr bool left_inner = transposed_left ? x.keeps_rows() : x.cuts_rows();
  constexpr bool right_inner =
      transposed_left ? w.keeps_rows() : w.is_shard(std::is_same_v<Rule, MatmulTransposed> ? 1 : 0);
  if constexpr (!on_one_mesh<X, W>)
    static_assert(on_one_mesh<X, W>, "distx: matmul: the operands lie on meshes of two types");
  else if constexpr (x.is_partial() && w.is_partial())
    static_assert(is_ruled<Missing>,
                  "distx: matmul: both operands are Partial over one axis, and a product of sums is not the sum of the "
                  "products: redistribute one of them to Replicated there");
  else if constexpr (x.is_partial())
    static_assert(is_ruled<Missing>,
                  "distx: matmul: the left operand is Partial over an axis that shards the right one, or with another "
                  "op than Sum: redistribute the left one to Replicated or Shard there");
  else if constexpr (w.is_partial())
    static_assert(is_ruled<Missing>,
                  "distx: matmul: the right operand is Partial over an axis that shards the left one, or with another "
                  "op than Sum: redistribute the right one to Replicated there");
  else if constexpr (left_inner)
    static_assert(is_ruled<Missing>,
                  "distx: matmul: the left operand is sharded in the dimension that is summed over, and the right one "
                  "is not: redistribute the right one to the same Shard of that dimension, or the left one to "
                  "Replicated");
  else if constexpr (right_inner)
    static_assert(is_ruled<Missing>,
                  "distx: matmul: the right operand is sharded in the dimension that is summed over, and the left one "
                  "is not: redistribute the left one to the same Shard of that dimension, or the right one to "
                  "Replicated");
  else
    static_assert(is_ruled<Missing>,
                  "distx: matmul: one axis shards the left operand's rows and the right one's columns: redistribute "
                  "one of them to Replicated there");
}

}  // namespace detail

template <class X, class W, class Product = LocalProduct>
  requires Operands<X, W>
auto matmul(const X&, const W&, const Product& = {}) -> detail::refused<X> {
  detail::refuse_matmul<Matmul, X, W>();
  return detail::never<detail::refused<X>>();
}
template <class X, class W, class Product = LocalProduct>
  requires Operands<X, W>
auto matmul(const X&, Transposed<W>, const Product& = {}) -> detail::refused<X> {
  detail::refuse_matmul<MatmulTransposed, X, W>();
  return detail::never<detail::refused<X>>();
}
template <class X, class Y, class Product = LocalProduct>
  requires Operands<X, Y>
auto matmul(Transposed<X>, const Y&, const Product& = {}) -> detail::refused<X, 2> {
  detail::refuse_matmul<TransposedMatmul, X, Y>();
  return detail::never<detail::refused<X, 2>>();
}

}  // namespace distx
