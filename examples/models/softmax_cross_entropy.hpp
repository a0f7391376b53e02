// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cmath>
#include <cstddef>
#include <span>

#include "layer.hpp"

namespace examples {

/// The mean over the batch of −log softmax(logits)[label]; `gradient` becomes that of the loss.
///
/// Each column is shifted by its maximum, so that no exponential overflows.
/// @pre one label a column of `logits`, each below its number of rows; at least one column
template <class Scalar, class Labels>
Scalar softmax_cross_entropy(const Matrix<Scalar>& logits, const Labels& labels, Matrix<Scalar>& gradient) {
  gradient.resize(logits.rows(), logits.cols());
  const double share = 1 / static_cast<double>(labels.size());
  double loss = 0;
  for (Eigen::Index sample = 0; sample < logits.cols(); ++sample) {
    const Scalar largest = logits.col(sample).maxCoeff();
    auto probability = gradient.col(sample);
    probability = (logits.col(sample).array() - largest).exp().matrix();
    const double total = probability.template cast<double>().sum();
    const Eigen::Index label = labels[static_cast<std::size_t>(sample)];
    loss += std::log(total) - (static_cast<double>(logits(label, sample)) - largest);
    const double factor = share / total;
    const auto at_label = static_cast<Scalar>(factor * probability(label) - share);
    probability = (factor * probability.template cast<double>()).template cast<Scalar>();
    probability(label) = at_label;
  }
  return static_cast<Scalar>(loss * share);
}

}  // namespace examples
