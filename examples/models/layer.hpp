// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cmath>
#include <string>
#include <utility>

#include <Eigen/Core>

#include "../common/portable_random.hpp"

namespace examples {

template <class Scalar>
using Matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;

template <class Scalar>
using Vector = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;

/// A matrix that is only looked at.
template <class Scalar>
using MatrixRef = Eigen::Ref<const Matrix<Scalar>>;

/// The sum of each row, added in double.
template <class Expression>
[[nodiscard]] auto row_sums(const Eigen::MatrixBase<Expression>& matrix) {
  Vector<double> sums = Vector<double>::Zero(matrix.rows());
  for (Eigen::Index column = 0; column < matrix.cols(); ++column) sums += matrix.col(column).template cast<double>();
  return sums.template cast<typename Expression::Scalar>().eval();
}

/// The parameters of a layer: a weight and a bias, each with its gradient.
///
/// All four arrays are contiguous, and stay where they are for as long as the layer does.
template <class Scalar>
struct Layer {
  std::string name;
  Matrix<Scalar> weight;  ///< outputs × inputs, column by column
  Matrix<Scalar> weight_gradient;
  Vector<Scalar> bias;  ///< outputs
  Vector<Scalar> bias_gradient;

  /// Draws the weight from ±sqrt(3 / inputs), variance 1 / inputs (LeCun et al., 1998, Efficient BackProp); the rest is
  /// 0.
  Layer(std::string layer_name, Eigen::Index inputs, Eigen::Index outputs, Generator& generator)
      : name(std::move(layer_name)),
        weight(outputs, inputs),
        weight_gradient(Matrix<Scalar>::Zero(outputs, inputs)),
        bias(Vector<Scalar>::Zero(outputs)),
        bias_gradient(Vector<Scalar>::Zero(outputs)) {
    const double bound = std::sqrt(3.0 / static_cast<double>(inputs));
    for (Eigen::Index i = 0; i < weight.size(); ++i) {
      weight.data()[i] = static_cast<Scalar>(uniform(generator, -bound, bound));
    }
  }
};

}  // namespace examples
