// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/memory/sums.hpp"
#include "distx/tensor/ops/apply.hpp"
#include "distx/tensor/ops/rules.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

/// @name Kernels of the host's memory
/// @{
/// out = x with b added to each row.
template <class T>
void add_to_rows(HostStream, MatrixRef<const T> x, Span<const T> b, MatrixRef<T> out) {
  for (std::size_t row = 0; row < x.rows; ++row) {
    const T* const from = x.at(row, 0);
    T* const to = out.at(row, 0);
    for (std::size_t i = 0; i < x.columns; ++i) to[i] = from[i] + b[i];
  }
}
/// out = the sum of the rows.
template <class T>
void sum_of_rows(HostStream stream, MatrixRef<const T> x, Span<T> out) {
  sum_of_blocks(stream, x.values, 1, x.rows, x.columns, 1, out);
}
/// @}

template <class Missing>
consteval void check_add_bias() {
  constexpr AxisPlacement x = Missing::operands[0], b = Missing::operands[1];
  if constexpr (x.is_partial())
    static_assert(is_supported<Missing>,
                  "distx: add_bias: the operand is Partial, so the bias would be added once per rank; redistribute "
                  "the operand first");
  else if constexpr (b.is_partial())
    static_assert(is_supported<Missing>, "distx: add_bias: the bias is Partial; redistribute it first");
  else if constexpr (x.shards_last_dim())
    static_assert(is_supported<Missing>,
                  "distx: add_bias: the operand is sharded in its last dimension and the bias is not; redistribute "
                  "the bias to Shard<0, Axis>");
  else
    static_assert(is_supported<Missing>,
                  "distx: add_bias: the bias is sharded and the operand's last dimension is not; redistribute the "
                  "bias to Replicated");
}
template <class Rule, std::size_t N, class X>
auto sum_leading(const Caller& caller, const X& x) {
  return applied<Rule>(
      caller,
      [](auto stream, auto each, auto out) { sum_of_rows(stream, as_matrix(each, rank_of<X> - N), out.values()); }, x);
}

}  // namespace detail

namespace ops {

/// Returns x (…, n) plus b (n) in each row. Local, stream-ordered; in GPU memory for float and double.
///
/// On each axis both are replicated, or `x` is sharded in its last dimension and `b` is too, or `x` is sharded in
/// another dimension and `b` is replicated, or both are Partial. The result has the extents and the layout of `x`. The
/// gradient of `b` is `sum_rows` of the result's gradient.
/// @throws InvalidArgument if the last extent of `x` is not that of `b`, or the operands are on different meshes
template <DistributedTensor X, DistributedTensor B>
[[nodiscard]] auto add_bias(const X& x, const B& b, std::source_location location = std::source_location::current()) {
  using Rule = rules::AddBias;
  detail::check_add_bias<detail::missing_case<Rule, X, B>>();
  return detail::applied<Rule>(
      {"add_bias", location},
      [](auto stream, auto rows, auto bias, auto out) {
        using detail::add_to_rows;
        add_to_rows(stream, detail::as_rows(rows), bias.values(), detail::as_rows(out));
      },
      x, b);
}

/// Returns the sum of x (…, n) over all dimensions but the last, (n). Local, stream-ordered; in GPU memory for float
/// and double.
///
/// Where `x` is Partial, or sharded in a dimension that is summed over, the result is Partial: redistribute it when the
/// sum is needed.
template <DistributedTensor X>
[[nodiscard]] auto sum_rows(const X& x, std::source_location location = std::source_location::current()) {
  using Rule = rules::SumRows;
  static_assert(detail::is_supported<detail::missing_case<Rule, X>>,
                "distx: sum_rows: the operand is Partial with an op other than Sum; redistribute it first");
  return detail::sum_leading<Rule, 1>({"sum_rows", location}, x);
}

}  // namespace ops

}  // namespace distx::inline DISTX_ABI
