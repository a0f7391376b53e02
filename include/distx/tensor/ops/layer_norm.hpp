// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cmath>

#include "distx/tensor/ops/bias.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

DISTX_KERNELS_BEGIN
/// A row, or one in each lane, as numbers of mean 0 and variance 1.
template <class Row, class Number>
struct NormalRow {
  Row row;
  Number mean, steepness;

  template <class V>
  V at(std::size_t i, V v) const {
    return (row.at(i, v) - V(mean)) * V(steepness);
  }
};
template <class Row, class Number>
NormalRow(Row, Number, Number) -> NormalRow<Row, Number>;

template <class T, class AtOnce>
auto normal_row(const T* numbers, const AtOnce& at_once, double epsilon) {
  using std::sqrt;
  const auto row = at_once.read(numbers);
  const auto width = static_cast<double>(at_once.n);
  const auto mean = quotient<T>(at_once.sum([&](std::size_t i, auto v) { return row.at(i, v); }), width);
  const auto variance = at_once.sum([&]<class V>(std::size_t i, V v) {
    const V each = row.at(i, v) - V(mean);
    return each * each;
  });
  return NormalRow{row, mean, 1 / sqrt(quotient<T>(variance, width) + epsilon)};
}

struct NormalizeRows {
  template <std::size_t Bytes, class T>
  static void run(MatrixRef<const T> x, const T* weight, const T* bias, double epsilon, MatrixRef<T> out) {
    for_each_row<Bytes>(x.rows, x.columns, [=](std::size_t row, const auto& at_once) {
      const auto normal = normal_row(x.at(row, 0), at_once, epsilon);
      T* const to = out.at(row, 0);
      at_once.for_each([&]<class V>(std::size_t i, V v) {
        at_once.store(
            to, i, normal.at(i, v) * at_once.template of_column<V>(weight, i) + at_once.template of_column<V>(bias, i));
      });
    });
  }
};
struct NormalizeRowsBackward {
  template <std::size_t Bytes, class T>
  static void run(MatrixRef<const T> x, const T* weight, MatrixRef<const T> gradient, double epsilon,
                  MatrixRef<T> out) {
    for_each_row<Bytes>(x.rows, x.columns, [=](std::size_t row, const auto& at_once) {
      const auto width = static_cast<double>(x.columns);
      const auto normal = normal_row(x.at(row, 0), at_once, epsilon);
      const auto grad = at_once.read(gradient.at(row, 0));
      T* const to = out.at(row, 0);
      const auto slope = [&]<class V>(std::size_t i, V v) {
        return grad.at(i, v) * at_once.template of_column<V>(weight, i);
      };
      const auto mean = quotient<T>(at_once.sum(slope), width);
      const auto along =
          quotient<T>(at_once.sum([&](std::size_t i, auto v) { return slope(i, v) * normal.at(i, v); }), width);
      at_once.for_each([&]<class V>(std::size_t i, V v) {
        at_once.store(to, i, V(normal.steepness) * (slope(i, v) - V(mean) - V(along) * normal.at(i, v)));
      });
    });
  }
};
struct AddNormalRowsWeight {
  template <std::size_t Bytes, class T>
  static void run(MatrixRef<const T> x, MatrixRef<const T> gradient, double epsilon, std::size_t begin, std::size_t end,
                  double* totals) {
    for (std::size_t row = begin; row < end; ++row) {
      const auto normal = normal_row(x.at(row, 0), ColumnsAtOnce<Bytes>{x.columns}, epsilon);
      const T* const grad = gradient.at(row, 0);
      for_each_wide<Bytes>(x.columns, [&]<class V>(std::size_t i, V v) {
        narrow_to(totals + i, wide<V>(totals + i) + wide<V>(grad + i) * normal.at(i, v));
      });
    }
  }
};
DISTX_KERNELS_END

/// @name Kernels of the host's memory
/// @{
template <class T>
void normalize_rows(HostStream, MatrixRef<const T> x, Span<const T> weight, Span<const T> bias, double epsilon,
                    MatrixRef<T> out) {
  run_on_lanes<NormalizeRows>(lane_bytes(), x, weight.data(), bias.data(), epsilon, out);
}
template <class T>
void normalize_rows_backward(HostStream, MatrixRef<const T> x, Span<const T> weight, MatrixRef<const T> gradient,
                             double epsilon, MatrixRef<T> out) {
  run_on_lanes<NormalizeRowsBackward>(lane_bytes(), x, weight.data(), gradient, epsilon, out);
}
template <class T>
void normalize_rows_weight(HostStream, MatrixRef<const T> x, MatrixRef<const T> gradient, double epsilon, Span<T> out) {
  std::vector<double> totals(x.columns);
  add_up_blocks(0, x.rows, x.columns, totals.data(), [&](std::size_t begin, std::size_t end, double* to) {
    run_on_lanes<AddNormalRowsWeight>(lane_bytes(), x, gradient, epsilon, begin, end, to);
  });
  round_to(totals, out);
}
/// @}

template <class Missing>
consteval void check_layer_norm() {
  constexpr AxisPlacement x = Missing::operands[0];
  if constexpr (x.is_partial())
    static_assert(is_supported<Missing>,
                  "distx: layer_norm: the operand is Partial and layer_norm is not linear; redistribute it first");
  else if constexpr (x.shards_last_dim())
    static_assert(is_supported<Missing>,
                  "distx: layer_norm: the operand is sharded in its last dimension, and layer_norm needs whole rows; "
                  "redistribute it to Replicated or to a Shard of another dimension");
  else
    static_assert(is_supported<Missing>,
                  "distx: layer_norm: the weight or the bias is not replicated; redistribute it to Replicated");
}
template <class Missing>
consteval void check_layer_norm_backward() {
  constexpr bool weight = Missing::operands[1].is_replicated();
  static_assert(supported_unless<Missing, !weight>,
                "distx: layer_norm_backward: the weight is not replicated; redistribute it to Replicated");
  static_assert(supported_unless<Missing, weight>,
                "distx: layer_norm_backward: the gradient's layout differs from the operand's, or the operand is "
                "Partial or sharded in its last dimension; redistribute it");
}

inline constexpr double layer_norm_epsilon = 1e-5;

}  // namespace detail

namespace ops {

/// Returns each row of x (…, n) normalized to mean 0 and variance 1, times weight (n), plus bias (n). Local,
/// stream-ordered, for float and double.
///
/// `x` is replicated, or sharded in a dimension other than the last, on each axis; `weight` and `bias` are replicated.
/// The result has the extents and the layout of `x`.
/// @param epsilon  added to the variance
/// @throws InvalidArgument if the extents do not match, or the operands are on different meshes
template <DistributedTensor X, DistributedTensor Weight, DistributedTensor Bias>
[[nodiscard]] auto layer_norm(const X& x, const Weight& weight, const Bias& bias,
                              double epsilon = detail::layer_norm_epsilon,
                              std::source_location location = std::source_location::current()) {
  using Rule = rules::LayerNorm;
  detail::check_layer_norm<detail::missing_case<Rule, X, Weight, Bias>>();
  return detail::applied<Rule>(
      {"layer_norm", location},
      [&](auto stream, auto rows, auto weights, auto biases, auto out) {
        using detail::normalize_rows;
        normalize_rows(stream, detail::as_rows(rows), weights.values(), biases.values(), epsilon, detail::as_rows(out));
      },
      x, weight, bias);
}

/// The gradients that `layer_norm_backward` returns. Where an axis shards the rows, those of weight and bias are
/// Partial over it.
template <class Input, class Weight, class Bias>
struct LayerNormGradients {
  Input input;
  Weight weight;
  Bias bias;
};
template <class Input, class Weight, class Bias>
LayerNormGradients(Input, Weight, Bias) -> LayerNormGradients<Input, Weight, Bias>;

/// Returns the gradients of x (…, n), weight (n) and bias (n) of `layer_norm` from the gradient of its result (…, n).
/// Local, as `layer_norm`; computes each row's mean and variance again.
///
/// `gradient` has the extents and the layout of `x`; where `x` is replicated it may be Partial, and then all three
/// results are.
/// @param epsilon  as passed to `layer_norm`
/// @throws InvalidArgument if the extents do not match, or the operands are on different meshes
template <DistributedTensor X, DistributedTensor Weight, DistributedTensor G>
[[nodiscard]] auto layer_norm_backward(const X& x, const Weight& weight, const G& gradient,
                                       double epsilon = detail::layer_norm_epsilon,
                                       std::source_location location = std::source_location::current()) {
  using Rule = rules::LayerNormBackward;
  const detail::Caller caller{"layer_norm_backward", location};
  detail::check_layer_norm_backward<detail::missing_case<Rule, X, Weight, G>>();
  static_assert(detail::on_one_mesh<X, Weight, G>,
                "distx: layer_norm_backward: the operands are on meshes of different types");
  if constexpr (detail::Applicable<Rule, X, Weight, G>) {
    const auto of_input = [&](auto stream, auto rows, auto weights, auto grads, auto out) {
      using detail::normalize_rows_backward;
      normalize_rows_backward(stream, detail::as_rows(rows), weights.values(), detail::as_rows(grads), epsilon,
                              detail::as_rows(out));
    };
    const auto of_weight = [&](auto stream, auto rows, auto grads, auto out) {
      using detail::normalize_rows_weight;
      normalize_rows_weight(stream, detail::as_rows(rows), detail::as_rows(grads), epsilon, out.values());
    };
    return LayerNormGradients{detail::applied<Rule>(caller, of_input, x, weight, gradient),
                              detail::applied<rules::LayerNormWeight>(caller, of_weight, x, gradient),
                              detail::sum_leading<rules::SumRows, 1>(caller, gradient)};
  } else {
    using Vector = detail::PlaceholderResult<rules::LayerNormWeight, X, G>;
    return detail::never<LayerNormGradients<detail::PlaceholderResult<Rule, X, Weight, G>, Vector, Vector>>();
  }
}

}  // namespace ops

}  // namespace distx::inline DISTX_ABI
