// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include "layer.hpp"

namespace examples {

/// x · Φ(x), nearly: the form with the hyperbolic tangent (Hendrycks and Gimpel, 2016, arXiv 1606.08415).
template <class Scalar>
class Gelu {
 public:
  void forward(const Matrix<Scalar>& input, Matrix<Scalar>& output) {
    const auto x = input.array();
    exponential_ = (-2 * root * x.abs() * (1 + cubic * x.square())).exp().matrix();
    const auto e = exponential_.array();
    output = (x * (x < 0).select(e, Scalar{1}) / (1 + e)).matrix();
  }

  /// Makes the gradient with respect to the output the one with respect to the input.
  /// @pre forward() was called with the same input
  void backward(const Matrix<Scalar>& input, Matrix<Scalar>& gradient) const {
    const auto x = input.array();
    const auto e = exponential_.array();
    gradient.array() *=
        ((x < 0).select(e, Scalar{1}) + 2 * root * x * (1 + 3 * cubic * x.square()) * e / (1 + e)) / (1 + e);
  }

 private:
  static constexpr Scalar root = Scalar(0.79788456080286535588);  // sqrt(2 / π)
  static constexpr Scalar cubic = Scalar(0.044715);

  Matrix<Scalar> exponential_;  // exp(-2|u|) of tanh(u): (1 + tanh(u)) / 2 is 1 / (1 + exp(-2u)), and nothing cancels
};

}  // namespace examples
