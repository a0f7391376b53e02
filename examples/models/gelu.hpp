// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include "layer.hpp"

namespace examples {

/// x · Φ(x), nearly: the form with the hyperbolic tangent (Hendrycks and Gimpel, 2016, arXiv 1606.08415).
template <class Scalar>
class Gelu {
 public:
  void forward(const Matrix<Scalar>& input, Matrix<Scalar>& output) {
    tanh_ = (root * input.array() * (1 + cubic * input.array().square())).tanh().matrix();
    output = (Scalar(0.5) * input.array() * (1 + tanh_.array())).matrix();
  }

  /// Makes the gradient with respect to the output the one with respect to the input.
  /// @pre forward() was called with the same input
  void backward(const Matrix<Scalar>& input, Matrix<Scalar>& gradient) const {
    const auto x = input.array();
    const auto t = tanh_.array();
    gradient.array() *= Scalar(0.5) * (1 + t + x * (1 - t.square()) * root * (1 + 3 * cubic * x.square()));
  }

 private:
  static constexpr Scalar root = Scalar(0.79788456080286535588);  // sqrt(2 / π)
  static constexpr Scalar cubic = Scalar(0.044715);

  Matrix<Scalar> tanh_;
};

}  // namespace examples
