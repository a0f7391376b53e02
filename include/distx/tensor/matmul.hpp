// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/memory/local_matmul.hpp"
#include "distx/tensor/apply.hpp"
#include "distx/tensor/rules.hpp"

namespace distx {

/// Whether `matmul(x, w)` compiles: the operands lie so that no communication is needed.
template <class X, class W>
concept Multipliable = Applicable<Matmul, X, W>;

namespace detail {

/// All dimensions but the last one as rows.
template <class T, std::size_t Rank, class Space>
MatrixRef<T, Space> matrix(const TensorRef<T, Rank, Space>& x) {
  static_assert(Rank >= 2, "distx: matmul: an operand has one dimension, and two are the least");
  const std::size_t columns = x.extent(Rank - 1);
  std::size_t rows = 1;
  for (std::size_t d = 0; d + 1 < Rank; ++d) rows *= x.extent(d);
  return {x.values(), rows, columns};
}

}  // namespace detail

/// The product of matrices by the space's own `local_matmul`; `eigen::Product` is Eigen's.
struct LocalProduct {
  template <class T, class Space>
  void operator()(MatrixRef<T, Space> out, MatrixRef<const T, Space> left, MatrixRef<const T, Space> right) const {
    local_matmul(typename Space::stream{}, out, left, right);
  }
};

/// x times w, for an x of two dimensions or more, whose last one is multiplied with w's first; see `Matmul`.
template <class X, class W, class Product = LocalProduct>
  requires Multipliable<X, W>
[[nodiscard]] auto matmul(const X& x, const W& w, const Product& multiply = {}) {
  return apply<Matmul>(x, w, [&](auto left, auto right, auto out) {
    multiply(detail::matrix(out), detail::matrix(left), detail::matrix(right));
  });
}

template <class X, class W, class Product = LocalProduct>
  requires Operands<X, W>
auto matmul(const X&, const W&, const Product& = {}) -> detail::refused<X> {
  static_assert(detail::on_one_mesh<X, W>, "distx: matmul: the operands lie on meshes of two types");
  if constexpr (detail::on_one_mesh<X, W>) {
    using Missing = detail::missing_case<Matmul, X, W>;
    constexpr Place x = Missing::operands[0], w = Missing::operands[1];
    if constexpr (x.is_partial() && w.is_partial())
      static_assert(is_ruled<Missing>,
                    "distx: matmul: both operands are Partial over one axis, and a product of sums is not the sum of "
                    "the products: redistribute one of them to Replicated there");
    else if constexpr (x.is_partial())
      static_assert(is_ruled<Missing>,
                    "distx: matmul: the left operand is Partial over an axis that shards the right one, or with "
                    "another op than Sum: redistribute the left one first");
    else if constexpr (w.is_partial())
      static_assert(is_ruled<Missing>,
                    "distx: matmul: the right operand is Partial over an axis that shards the left one, or with "
                    "another op than Sum: redistribute the right one first");
    else if constexpr (x.cuts_rows())
      static_assert(is_ruled<Missing>,
                    "distx: matmul: the left operand is sharded in the dimension that is summed over, and the right "
                    "one not in its dimension 0: redistribute the right one to Shard<0, Axis>, or the left one to "
                    "Replicated");
    else if constexpr (w.is_shard(0))
      static_assert(is_ruled<Missing>,
                    "distx: matmul: the right operand is sharded in the dimension that is summed over, and the left "
                    "one not in its last: redistribute the left one to that, or the right one to Replicated");
    else
      static_assert(is_ruled<Missing>,
                    "distx: matmul: one axis shards the left operand's rows and the right one's columns: "
                    "redistribute one of them to Replicated there");
  }
  return detail::never<detail::refused<X>>();
}

}  // namespace distx
