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
      : epsilon_(epsilon),
        scale_(initial.constant<Weight>(name + ".scale", width, 1)),
        shift_(initial.constant<Weight>(name + ".shift", width, 0)) {}

  [[nodiscard]] std::array<const distx::Parameter<Weight>*, 2> parameters() const { return {&scale_, &shift_}; }

  void forward(const Matrix<Scalar>& input, Matrix<Scalar>& output) {
    const auto scale = vector_of(scale_);
    const auto shift = vector_of(shift_);
    const auto width = static_cast<double>(input.rows());
    Vector<double> centred(input.rows());
    normal_.resize(input.rows(), input.cols());
    output.resize(input.rows(), input.cols());
    steepness_.resize(input.cols());
    for (Eigen::Index token = 0; token < input.cols(); ++token) {
      centred = input.col(token).template cast<double>();
      centred.array() -= centred.sum() / width;
      const double steepness = 1 / std::sqrt(centred.squaredNorm() / width + epsilon_);
      auto normal = normal_.col(token);
      normal = (steepness * centred).template cast<Scalar>();
      steepness_(token) = static_cast<Scalar>(steepness);
      output.col(token) = (normal.array() * scale.array() + shift.array()).matrix();
    }
  }

  /// The gradients of the parameters, which are ready then; that of the input is added to `input_gradient`.
  /// @pre forward() was called with the same input
  template <class Training>
  void backward(const Matrix<Scalar>& output_gradient, Matrix<Scalar>& input_gradient, Training& training) const {
    add_to_gradient(scale_, row_sums(output_gradient.cwiseProduct(normal_)));
    add_to_gradient(shift_, row_sums(output_gradient));
    training.ready(scale_, shift_);
    const auto scale = vector_of(scale_);
    const auto width = static_cast<double>(normal_.rows());
    Vector<double> slope(normal_.rows());
    for (Eigen::Index token = 0; token < normal_.cols(); ++token) {
      slope = output_gradient.col(token).cwiseProduct(scale).template cast<double>();
      const double mean = slope.sum() / width;
      const double along = slope.dot(normal_.col(token).template cast<double>()) / width;
      slope.array() -= mean + along * normal_.col(token).template cast<double>().array();
      input_gradient.col(token) += (steepness_(token) * slope).template cast<Scalar>();
    }
  }

 private:
  double epsilon_;
  distx::Parameter<Weight> scale_;
  distx::Parameter<Weight> shift_;
  Matrix<Scalar> normal_;     // the input with mean 0 and variance 1
  Vector<Scalar> steepness_;  // of each token: 1 / standard deviation
};

}  // namespace examples
