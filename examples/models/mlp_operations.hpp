// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include <distx/core/span.hpp>

// The operations of a perceptron other than matrix products, in host memory; mlp_kernels.hpp has the same for GPUs. The
// rows of a matrix are samples. Its number of columns follows from the other arguments: it is the size of the bias or
// of the column sums, or the number of elements divided by the number of labels.
namespace examples {

/// Of one sample: its loss, −log softmax(scores)[label], and of that, divided by the number of samples, the gradient.
///
/// Scores are shifted by the largest, so that no exponential overflows.
template <class T>
constexpr T softmax_of_sample(const T* scores, std::size_t classes, std::uint8_t label, double share, T* gradient) {
  T largest = scores[0];
  for (std::size_t c = 1; c < classes; ++c) largest = scores[c] > largest ? scores[c] : largest;
  double total = 0;
  for (std::size_t c = 0; c < classes; ++c) {
    gradient[c] = std::exp(scores[c] - largest);
    total += gradient[c];
  }
  const double factor = share / total;
  const T at_label = static_cast<T>(factor * gradient[label] - share);
  for (std::size_t c = 0; c < classes; ++c) gradient[c] = static_cast<T>(factor * gradient[c]);
  gradient[label] = at_label;
  return static_cast<T>(std::log(total) - (static_cast<double>(scores[label]) - largest));
}

/// values += bias, in every row; below zero becomes zero where `relu`.
inline void add_bias(distx::HostStream, distx::Span<float> values, distx::Span<const float> bias, bool relu) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] += bias[i % bias.size()];
    if (relu && values[i] < 0) values[i] = 0;
  }
}

/// The gradient stays where the output is above zero.
inline void relu_backward(distx::HostStream, distx::Span<float> gradient, distx::Span<const float> output) {
  for (std::size_t i = 0; i < gradient.size(); ++i)
    if (!(output[i] > 0)) gradient[i] = 0;
}

/// sums[c] += the sum of column c.
inline void add_column_sums(distx::HostStream, distx::Span<float> sums, distx::Span<const float> values) {
  for (std::size_t c = 0; c < sums.size(); ++c) {
    double sum = sums[c];
    for (std::size_t i = c; i < values.size(); i += sums.size()) sum += values[i];
    sums[c] = static_cast<float>(sum);
  }
}

/// Each sample's loss, and the gradient of their mean.
inline void softmax_cross_entropy(distx::HostStream, distx::Span<const float> scores,
                                  distx::Span<const std::uint8_t> labels, distx::Span<float> losses,
                                  distx::Span<float> gradient) {
  const std::size_t classes = scores.size() / labels.size();
  for (std::size_t s = 0; s < labels.size(); ++s)
    losses[s] = softmax_of_sample(scores.data() + s * classes, classes, labels[s],
                                  1 / static_cast<double>(labels.size()), gradient.data() + s * classes);
}

}  // namespace examples
