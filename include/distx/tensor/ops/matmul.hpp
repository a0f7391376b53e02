// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/memory/local_matmul.hpp"
#include "distx/tensor/ops/apply.hpp"
#include "distx/tensor/ops/rules.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

/// A matrix whose transpose is an operand of `matmul`; borrows it.
template <DistributedTensor X>
struct Transposed {
  const X& tensor;
};

template <class Rule, class Missing>
consteval void check_matmul() {
  constexpr bool transposed_left = std::is_same_v<Rule, rules::TransposedMatmul>;
  constexpr AxisPlacement x = Missing::operands[0], w = Missing::operands[1];
  constexpr bool left_inner = transposed_left ? x.shards_other_dim() : x.shards_last_dim();
  constexpr bool right_inner =
      transposed_left ? w.shards_other_dim() : w.is_shard(std::is_same_v<Rule, rules::MatmulTransposed> ? 1 : 0);
  if constexpr (x.is_partial() && w.is_partial())
    static_assert(is_supported<Missing>,
                  "distx: matmul: both operands are Partial over one axis, and a product of sums is not the sum of "
                  "the products; redistribute one of them to Replicated there");
  else if constexpr (x.is_partial())
    static_assert(is_supported<Missing>,
                  "distx: matmul: the left operand is Partial over an axis that shards the right one, or with an op "
                  "other than Sum; redistribute the left one to Replicated or Shard there");
  else if constexpr (w.is_partial())
    static_assert(is_supported<Missing>,
                  "distx: matmul: the right operand is Partial over an axis that shards the left one, or with an op "
                  "other than Sum; redistribute the right one to Replicated there");
  else if constexpr (left_inner)
    static_assert(is_supported<Missing>,
                  "distx: matmul: the left operand is sharded in the dimension that is summed over, and the right "
                  "one is not; redistribute the right one to the same Shard of that dimension, or the left one to "
                  "Replicated");
  else if constexpr (right_inner)
    static_assert(is_supported<Missing>,
                  "distx: matmul: the right operand is sharded in the dimension that is summed over, and the left "
                  "one is not; redistribute the left one to the same Shard of that dimension, or the right one to "
                  "Replicated");
  else
    static_assert(is_supported<Missing>,
                  "distx: matmul: one axis shards the left operand's rows and the right one's columns; redistribute "
                  "one of them to Replicated there");
}

}  // namespace detail

namespace ops {

/// Marks an operand of `matmul` as transposed: `matmul(x, transposed(w))`. Borrows it; nothing is copied.
template <DistributedTensor X>
[[nodiscard]] detail::Transposed<X> transposed(const X& x) {
  return {x};
}
template <DistributedTensor X>
void transposed(const X&& x) = delete;  // the operand would be destroyed before its use

/// @name Matrix products
/// Local: no product communicates. On the host's memory a product is computed before the call returns; in other memory
/// spaces it is enqueued on the mesh's stream. Leading dimensions of the left operand are flattened into
/// rows. Element types are those that the space's `local_matmul` takes; the result has the left operand's.
///
/// Where an axis shards the dimension that is summed over, in both operands, the result is Partial over it:
/// `redistribute` it to sum the terms. A product is linear in each operand, so one of them may be Partial where the
/// other is replicated. docs/rules.md lists all placements; others do not compile. The gradients of y = matmul(x, w)
/// are matmul(dy, transposed(w)) and matmul(transposed(x), dy).
///
/// @param local_product  how each rank multiplies its parts: a function object on (result, left, right) as
///   `MatrixRef`s, after the stream in memory spaces that have one; `eigen::product` multiplies by Eigen
/// @throws InvalidArgument if the extents do not match, or the operands are on different meshes
/// @{

/// Returns x (…, m, k) times w (k, n), which is (…, m, n).
template <DistributedTensor X, DistributedTensor W, class Product = detail::LocalProduct>
[[nodiscard]] auto matmul(const X& x, const W& w, const Product& local_product = {},
                          std::source_location location = std::source_location::current()) {
  using Rule = rules::Matmul;
  detail::check_matmul<Rule, detail::missing_case<Rule, X, W>>();
  constexpr std::size_t m = detail::rank_of<X> - 1;
  return detail::multiplied<Rule>({"matmul", location}, local_product, m, x, {m}, w, {1});
}
/// Returns x (…, m, k) times the transpose of w (n, k), which is (…, m, n).
template <DistributedTensor X, DistributedTensor W, class Product = detail::LocalProduct>
[[nodiscard]] auto matmul(const X& x, detail::Transposed<W> w, const Product& local_product = {},
                          std::source_location location = std::source_location::current()) {
  using Rule = rules::MatmulTransposed;
  detail::check_matmul<Rule, detail::missing_case<Rule, X, W>>();
  constexpr std::size_t m = detail::rank_of<X> - 1;
  return detail::multiplied<Rule>({"matmul", location}, local_product, m, x, {m}, w.tensor, {1, true});
}
/// Returns the transpose of x (…, k, m) times y (…, k, n), summed over all rows, which is (m, n).
template <DistributedTensor X, DistributedTensor Y, class Product = detail::LocalProduct>
[[nodiscard]] auto matmul(detail::Transposed<X> x, const Y& y, const Product& local_product = {},
                          std::source_location location = std::source_location::current()) {
  using Rule = rules::TransposedMatmul;
  detail::check_matmul<Rule, detail::missing_case<Rule, X, Y>>();
  constexpr std::size_t m = detail::rank_of<X> - 1;
  return detail::multiplied<Rule>({"matmul", location}, local_product, 1, x.tensor, {m, true}, y, {m});
}
/// @}

}  // namespace ops

}  // namespace distx::inline DISTX_ABI
