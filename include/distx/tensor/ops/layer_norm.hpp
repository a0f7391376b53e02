// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cmath>
#include <utility>

#include "distx/tensor/ops/bias.hpp"

namespace distx {

namespace detail {

/// A row's mean, and one over its standard deviation.
template <class T>
std::pair<T, T> moments(const T* row, std::size_t n, T epsilon) {
  T mean = 0, variance = 0;
  for (std::size_t i = 0; i < n; ++i) mean += row[i];
  mean /= static_cast<T>(n);
  for (std::size_t i = 0; i < n; ++i) variance += (row[i] - mean) * (row[i] - mean);
  return {mean, 1 / std::sqrt(variance / static_cast<T>(n) + epsilon)};
}

/// @name Operations of the host's memory
/// @{
template <class T>
void normalize_rows(HostStream, MatrixRef<const T> x, Span<const T> gain, Span<const T> bias, T epsilon,
                    MatrixRef<T> out) {
  for (std::size_t row = 0; row < x.rows; ++row) {
    const auto [mean, steepness] = moments(x.at(row, 0), x.columns, epsilon);
    for (std::size_t i = 0; i < x.columns; ++i)
      *out.at(row, i) = (*x.at(row, i) - mean) * steepness * gain[i] + bias[i];
  }
}
template <class T>
void normalize_rows_backward(HostStream, MatrixRef<const T> x, Span<const T> gain, MatrixRef<const T> gradient,
                             T epsilon, MatrixRef<T> out) {
  const auto n = static_cast<T>(x.columns);
  for (std::size_t row = 0; row < x.rows; ++row) {
    const auto [mean, steepness] = moments(x.at(row, 0), x.columns, epsilon);
    T slope = 0, along = 0;
    for (std::size_t i = 0; i < x.columns; ++i) {
      const T each = *gradient.at(row, i) * gain[i];
      slope += each;
      along += each * (*x.at(row, i) - mean) * steepness;
    }
    for (std::size_t i = 0; i < x.columns; ++i)
      *out.at(row, i) =
          steepness * (*gradient.at(row, i) * gain[i] - slope / n - along / n * (*x.at(row, i) - mean) * steepness);
  }
}
template <class T>
void normalize_rows_gain(HostStream stream, MatrixRef<const T> x, MatrixRef<const T> gradient, T epsilon, Span<T> out) {
  fill(stream, out, T{});
  for (std::size_t row = 0; row < x.rows; ++row) {
    const auto [mean, steepness] = moments(x.at(row, 0), x.columns, epsilon);
    for (std::size_t i = 0; i < x.columns; ++i) out[i] += *gradient.at(row, i) * (*x.at(row, i) - mean) * steepness;
  }
}
/// @}

template <class X, class Gain, class Bias>
void refuse_layer_norm() {
  using Missing = missing_case<LayerNorm, X, Gain, Bias>;
  constexpr AxisPlace x = Missing::operands[0];
  if constexpr (!on_one_mesh<X, Gain, Bias>)
    static_assert(on_one_mesh<X, Gain, Bias>, "distx: layer_norm: the operands lie on meshes of two types");
  else if constexpr (x.is_partial())
    static_assert(is_ruled<Missing>,
                  "distx: layer_norm: the operand is Partial and layer_norm is not linear: redistribute it first");
  else if constexpr (x.cuts_rows())
    static_assert(is_ruled<Missing>,
                  "distx: layer_norm: the operand is sharded in its last dimension, and layer_norm needs whole rows: "
                  "redistribute it to Replicated or to a Shard of another dimension");
  else
    static_assert(is_ruled<Missing>,
                  "distx: layer_norm: the gain or the bias is not replicated: redistribute it to Replicated");
}
template <class X, class Gain, class G>
void refuse_layer_norm_backward() {
  using Missing = missing_case<LayerNormBackward, X, Gain, G>;
  if constexpr (!on_one_mesh<X, Gain, G>)
    static_assert(on_one_mesh<X, Gain, G>, "distx: layer_norm_backward: the operands lie on meshes of two types");
  else if constexpr (!Missing::operands[1].is_replicated())
    static_assert(is_ruled<Missing>,
                  "distx: layer_norm_backward: the gain is not replicated: redistribute it to Replicated");
  else
    static_assert(is_ruled<Missing>,
                  "distx: layer_norm_backward: the gradient does not lie as the operand does, or the operand is "
                  "Partial or sharded in its last dimension: redistribute it");
}

}  // namespace detail

/// What is added to the variance.
inline constexpr double layer_norm_epsilon = 1e-5;

/// The rows brought to mean 0 and variance 1, times the gain, plus the bias.
template <class X, class Gain, class Bias>
  requires Applicable<LayerNorm, X, Gain, Bias>
[[nodiscard]] auto layer_norm(const X& x, const Gain& gain, const Bias& bias, double epsilon = layer_norm_epsilon) {
  return apply<LayerNorm>(x, gain, bias, [&](auto rows, auto gains, auto biases, auto out) {
    detail::normalize_rows(typename X::space::stream{}, detail::as_rows(rows), gains.values(), biases.values(),
                           static_cast<value_of<X>>(epsilon), detail::as_rows(out));
  });
}

/// The gradients of a layer norm; where an axis shards the rows, those of gain and bias are Partial over it.
template <class Input, class Gain, class Bias>
struct LayerNormGradients {
  Input input;
  Gain gain;
  Bias bias;
};
template <class Input, class Gain, class Bias>
LayerNormGradients(Input, Gain, Bias) -> LayerNormGradients<Input, Gain, Bias>;

/// From the gradient of the result, in which they are linear; computes each row's moments again.
template <class X, class Gain, class G>
  requires Applicable<LayerNormBackward, X, Gain, G>
[[nodiscard]] auto layer_norm_backward(const X& x, const Gain& gain, const G& gradient,
                                       double epsilon = layer_norm_epsilon) {
  const typename X::space::stream stream{};
  const auto e = static_cast<value_of<X>>(epsilon);
  return LayerNormGradients{
      apply<LayerNormBackward>(x, gain, gradient,
                               [&](auto rows, auto gains, auto slopes, auto out) {
                                 detail::normalize_rows_backward(stream, detail::as_rows(rows), gains.values(),
                                                                 detail::as_rows(slopes), e, detail::as_rows(out));
                               }),
      apply<LayerNormGain>(x, gradient,
                           [&](auto rows, auto slopes, auto out) {
                             detail::normalize_rows_gain(stream, detail::as_rows(rows), detail::as_rows(slopes), e,
                                                         out.values());
                           }),
      sum_rows(gradient)};
}

template <class X, class Gain, class Bias>
  requires Operands<X, Gain, Bias>
auto layer_norm(const X&, const Gain&, const Bias&, double = 0) -> detail::refused<X> {
  detail::refuse_layer_norm<X, Gain, Bias>();
  return detail::never<detail::refused<X>>();
}
template <class X, class Gain, class G>
  requires Operands<X, Gain, G>
auto layer_norm_backward(const X&, const Gain&, const G&, double = 0)
    -> LayerNormGradients<detail::refused<X>, detail::refused<X, 1>, detail::refused<X, 1>> {
  detail::refuse_layer_norm_backward<X, Gain, G>();
  return detail::never<LayerNormGradients<detail::refused<X>, detail::refused<X, 1>, detail::refused<X, 1>>>();
}

}  // namespace distx
