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
  const Scalar share = Scalar{1} / static_cast<Scalar>(labels.size());
  Scalar loss = 0;
  for (Eigen::Index sample = 0; sample < logits.cols(); ++sample) {
    const Scalar largest = logits.col(sample).maxCoeff();
    auto probability = gradient.col(sample);
    probability = (logits.col(sample).array() - largest).exp().matrix();
    const Scalar total = probability.sum();
    const Eigen::Index label = labels[static_cast<std::size_t>(sample)];
    loss += std::log(total) - (logits(label, sample) - largest);
    probability *= share / total;
    probability(label) -= share;
  }
  return loss * share;
}

}  // namespace examples
