// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <array>
#include <cmath>
#include <string>

#include "parameter_matrix.hpp"

namespace examples {

/// Makes mean and variance of each token's features 0 and 1, then scales and shifts each feature by what was learnt (Ba
/// et al., 2016, arXiv 1607.06450).
template <class Weight>
class LayerNorm {
 public:
  using Scalar = distx::accumulator_t<Weight>;

  /// @param epsilon  is added to the variance
  LayerNorm(const std::string& name, Eigen::Index width, double epsilon, InitialWeights& initial)
      : epsilon_(static_cast<Scalar>(epsilon)),
        scale_(initial.constant<Weight>(name + ".scale", width, 1)),
        shift_(initial.constant<Weight>(name + ".shift", width, 0)) {}

  [[nodiscard]] std::array<const distx::Parameter<Weight>*, 2> parameters() const { return {&scale_, &shift_}; }

  void forward(const Matrix<Scalar>& input, Matrix<Scalar>& output) {
    const auto scale = vector_of(scale_);
    const auto shift = vector_of(shift_);
    const auto width = static_cast<Scalar>(input.rows());
    normal_.resize(input.rows(), input.cols());
    output.resize(input.rows(), input.cols());
    steepness_.resize(input.cols());
    for (Eigen::Index token = 0; token < input.cols(); ++token) {
      auto normal = normal_.col(token);
      normal = (input.col(token).array() - input.col(token).sum() / width).matrix();
      steepness_(token) = 1 / std::sqrt(normal.squaredNorm() / width + epsilon_);
      normal *= steepness_(token);
      output.col(token) = (normal.array() * scale.array() + shift.array()).matrix();
    }
  }

  /// The gradients of the parameters, which are ready then; that of the input is added to `input_gradient`.
  /// @pre forward() was called with the same input
  template <class Training>
  void backward(const Matrix<Scalar>& output_gradient, Matrix<Scalar>& input_gradient, Training& training) const {
    add_to_gradient(scale_, output_gradient.cwiseProduct(normal_).rowwise().sum());
    add_to_gradient(shift_, output_gradient.rowwise().sum());
    training.ready(scale_, shift_);
    const auto scale = vector_of(scale_);
    const auto width = static_cast<Scalar>(normal_.rows());
    Vector<Scalar> slope(normal_.rows());
    for (Eigen::Index token = 0; token < normal_.cols(); ++token) {
      slope = output_gradient.col(token).cwiseProduct(scale);
      const Scalar mean = slope.sum() / width;
      const Scalar along = slope.dot(normal_.col(token)) / width;
      input_gradient.col(token).array() +=
          steepness_(token) * (slope.array() - mean - along * normal_.col(token).array());
    }
  }

 private:
  Scalar epsilon_;
  distx::Parameter<Weight> scale_;
  distx::Parameter<Weight> shift_;
  Matrix<Scalar> normal_;     // the input with mean 0 and variance 1
  Vector<Scalar> steepness_;  // of each token: 1 / standard deviation
};

}  // namespace examples
