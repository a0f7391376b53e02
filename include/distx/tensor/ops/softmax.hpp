// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cmath>
#include <limits>

#include "distx/memory/sums.hpp"
#include "distx/tensor/ops/apply.hpp"
#include "distx/tensor/ops/rules.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

DISTX_KERNELS_BEGIN
struct SoftmaxRows {
  template <std::size_t Bytes, class T>
  static void run(MatrixRef<const T> x, MatrixRef<T> out) {
    const auto maximum_of = [=](std::size_t row) {
      const T* const from = x.at(row, 0);
      T maximum = -std::numeric_limits<T>::infinity();
      for (std::size_t i = 0; i < x.columns; ++i) maximum = std::max(maximum, from[i]);
      return maximum;
    };
    if (x.columns <= short_row)
      return exponentials_of_short_rows<Bytes>(x, maximum_of, [=](std::size_t row, const double* each) {
        const double share = 1 / add_up<Bytes>(each, x.columns);
        T* const to = out.at(row, 0);
        for_each_wide<Bytes>(x.columns,
                             [=]<class V>(std::size_t i, V) { narrow_to(to + i, wide<V>(each + i) * V(share)); });
      });
    for (std::size_t row = 0; row < x.rows; ++row) {
      const T* const from = x.at(row, 0);
      T* const to = out.at(row, 0);
      const double maximum = maximum_of(row);
      const double share = 1 / add_up<Bytes>(x.columns, [=]<class V>(std::size_t i, V) {
                             const V each = exponential<T>(wide<V>(from + i) - V(maximum));
                             narrow_to(to + i, each);
                             return each;
                           });
      for_each_wide<Bytes>(x.columns,
                           [=]<class V>(std::size_t i, V) { narrow_to(to + i, wide<V>(to + i) * V(share)); });
    }
  }
};
struct SoftmaxRowsBackward {
  template <std::size_t Bytes, class T>
  static void run(MatrixRef<const T> y, MatrixRef<const T> gradient, MatrixRef<T> out) {
    const auto each_row = [=](std::size_t row, const auto& at_once) {
      const auto value = at_once.read(y.at(row, 0)), grad = at_once.read(gradient.at(row, 0));
      T* const to = out.at(row, 0);
      const auto mean = at_once.sum([&](std::size_t i, auto v) { return value.at(i, v) * grad.at(i, v); });
      auto columns = at_once;
      if constexpr (std::same_as<decltype(columns), ColumnsAtOnce<Bytes>>) {
        // Whole vectors, while other rows follow, which are set later.
        if ((y.rows - 1 - row) * y.columns >= 8) columns.n = (y.columns + 7) / 8 * 8;
      }
      columns.for_each(
          [&]<class V>(std::size_t i, V v) { at_once.store(to, i, value.at(i, v) * (grad.at(i, v) - V(mean))); });
    };
    // Few operations on each number, so reading numbers that are apart takes more time than it saves for longer rows.
    for_each_row<Bytes>(y.rows, y.columns, each_row, 6);
  }
};
DISTX_KERNELS_END

/// @name Kernels of the host's memory
/// @{
template <class T>
void softmax_rows(HostStream, MatrixRef<const T> x, MatrixRef<T> out) {
  run_on_lanes<SoftmaxRows>(lane_bytes(), x, out);
}
template <class T>
void softmax_rows_backward(HostStream, MatrixRef<const T> y, MatrixRef<const T> gradient, MatrixRef<T> out) {
  run_on_lanes<SoftmaxRowsBackward>(lane_bytes(), y, gradient, out);
}
/// @}

template <class Missing>
consteval void check_softmax() {
  constexpr bool partial = Missing::operands[0].is_partial();
  static_assert(supported_unless<Missing, partial>,
                "distx: softmax: the operand is Partial and softmax is not linear; redistribute it first");
  static_assert(supported_unless<Missing, !partial>,
                "distx: softmax: the operand is sharded in its last dimension, and softmax needs whole rows; "
                "redistribute it to Replicated or to a Shard of another dimension");
}
template <class Missing>
consteval void check_softmax_backward() {
  constexpr bool of_result = Missing::operands[0].is_partial() || Missing::operands[0].shards_last_dim();
  static_assert(supported_unless<Missing, of_result>,
                "distx: softmax_backward: the result is Partial or sharded in its last dimension; redistribute it "
                "first");
  static_assert(supported_unless<Missing, !of_result>,
                "distx: softmax_backward: the gradient's layout differs from the result's; redistribute the gradient "
                "to that layout");
}

}  // namespace detail

namespace ops {

/// Returns exp(x) divided by its sum along the last dimension. Local, on the host's memory, for float and double.
///
/// `x` (…, n) is replicated, or sharded in a dimension other than the last, on each axis; the result has its extents
/// and layout.
template <DistributedTensor X>
[[nodiscard]] auto softmax(const X& x, std::source_location location = std::source_location::current()) {
  using Rule = rules::Rowwise;
  detail::check_softmax<detail::missing_case<Rule, X>>();
  return detail::applied<Rule>(
      {"softmax", location},
      [](auto stream, auto rows, auto out) {
        using detail::softmax_rows;
        softmax_rows(stream, detail::as_rows(rows), detail::as_rows(out));
      },
      x);
}
/// Returns the gradient of the operand of `softmax` from its result `y` and the gradient of `y`. Local, as `softmax`.
///
/// `gradient` has the extents and the layout of `y`; where `y` is replicated it may be Partial, and then the result is.
/// @throws InvalidArgument if the extents differ, or the operands are on different meshes
template <DistributedTensor Y, DistributedTensor G>
[[nodiscard]] auto softmax_backward(const Y& y, const G& gradient,
                                    std::source_location location = std::source_location::current()) {
  using Rule = rules::RowwiseBackward;
  detail::check_softmax_backward<detail::missing_case<Rule, Y, G>>();
  return detail::applied<Rule>(
      {"softmax_backward", location},
      [](auto stream, auto values, auto grads, auto out) {
        using detail::softmax_rows_backward;
        softmax_rows_backward(stream, detail::as_rows(values), detail::as_rows(grads), detail::as_rows(out));
      },
      y, gradient);
}

}  // namespace ops

}  // namespace distx::inline DISTX_ABI
