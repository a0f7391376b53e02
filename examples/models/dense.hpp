// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include "layer.hpp"

namespace examples::dense {

/// output = weight · input + bias, for a batch of one sample a column.
template <class Scalar>
void forward(const Layer<Scalar>& layer, const MatrixRef<Scalar>& input, Matrix<Scalar>& output) {
  output.noalias() = layer.weight * input;
  output.colwise() += layer.bias;
}

/// Overwrites the layer's gradients.
template <class Scalar>
void backward(Layer<Scalar>& layer, const MatrixRef<Scalar>& input, const Matrix<Scalar>& output_gradient) {
  layer.weight_gradient.noalias() = output_gradient * input.transpose();
  layer.bias_gradient.noalias() = row_sums(output_gradient);  // copied: moved, it would be another array
}

/// The gradient with respect to the input.
template <class Scalar>
void input_gradient(const Layer<Scalar>& layer, const Matrix<Scalar>& output_gradient, Matrix<Scalar>& gradient) {
  gradient.noalias() = layer.weight.transpose() * output_gradient;
}

}  // namespace examples::dense
