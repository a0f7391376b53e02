// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cmath>

#include "layer.hpp"

namespace examples {

/// Replaces each value by its hyperbolic tangent.
template <class Scalar>
void activate(Matrix<Scalar>& values) {
  values = values.unaryExpr([](Scalar x) { return std::tanh(x); });  // that of Eigen is less accurate
}

/// Makes the gradient with respect to the activated values the one with respect to the values before.
template <class Scalar>
void activation_gradient(const Matrix<Scalar>& activated, Matrix<Scalar>& gradient) {
  gradient.array() *= Scalar{1} - activated.array().square();
}

}  // namespace examples
