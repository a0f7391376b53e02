// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <array>
#include <string>

#include "parameter_matrix.hpp"

namespace examples {

/// output = weight · input + bias, for a batch of one token a column.
template <class Weight>
class Linear {
 public:
  using Scalar = distx::accumulator_t<Weight>;

  /// The weight is outputs × inputs, of the given standard deviation at first; the bias is 0.
  Linear(const std::string& name, Eigen::Index inputs, Eigen::Index outputs, double deviation, InitialWeights& initial)
      : inputs_(inputs),
        outputs_(outputs),
        weight_(initial.uniform<Weight>(name + ".weight", inputs * outputs, deviation, matrix_of_rows(outputs))),
        bias_(initial.constant<Weight>(name + ".bias", outputs, 0)) {}

  [[nodiscard]] std::array<const distx::Parameter<Weight>*, 2> parameters() const { return {&weight_, &bias_}; }

  void forward(const Matrix<Scalar>& input, Matrix<Scalar>& output) const {
    output.noalias() = matrix_of(weight_, outputs_, inputs_) * input;
    output.colwise() += vector_of(bias_);
  }

  /// The gradients of the parameters, which are ready then, and that of the input.
  template <class Training>
  void backward(const Matrix<Scalar>& input, const Matrix<Scalar>& output_gradient, Matrix<Scalar>& input_gradient,
                Training& training) const {
    add_to_gradient(weight_, output_gradient * input.transpose());
    add_to_gradient(bias_, row_sums(output_gradient));
    training.ready(weight_, bias_);
    input_gradient.noalias() = matrix_of(weight_, outputs_, inputs_).transpose() * output_gradient;
  }

 private:
  Eigen::Index inputs_;
  Eigen::Index outputs_;
  distx::Parameter<Weight> weight_;
  distx::Parameter<Weight> bias_;
};

}  // namespace examples
