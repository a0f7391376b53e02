// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>

#include "image_shape.hpp"
#include "layer.hpp"

namespace examples {

/// A convolution with a square kernel and stride 1, as one product of matrices for the whole batch.
///
/// Every output pixel's receptive field becomes a column of `patches_` (im2col), in the order kernel row, kernel
/// column, channel; so the weight is output channels × (kernel · kernel · input channels).
template <class Scalar>
class Convolution {
 public:
  /// @pre the padded input is at least as large as the kernel
  Convolution(ImageShape input, Eigen::Index output_channels, Eigen::Index kernel, Eigen::Index padding)
      : input_(input),
        output_{output_channels, input.height + 2 * padding - kernel + 1, input.width + 2 * padding - kernel + 1},
        kernel_(kernel),
        padding_(padding) {}

  [[nodiscard]] const ImageShape& output() const { return output_; }
  [[nodiscard]] Eigen::Index patch_size() const { return kernel_ * kernel_ * input_.channels; }

  void forward(const Layer<Scalar>& layer, const MatrixRef<Scalar>& input, Matrix<Scalar>& output) {
    const Eigen::Index samples = input.cols() / input_.pixels();
    if (patches_.cols() != samples * output_.pixels()) {
      patches_.setZero(patch_size(), samples * output_.pixels());  // the padding in it is never written again
    }
    for_each_run(samples, [&](Eigen::Index patch, Eigen::Index pixel, Eigen::Index length) {
      std::copy_n(input.data() + pixel, length, patches_.data() + patch);
    });
    output.noalias() = layer.weight * patches_;
    output.colwise() += layer.bias;
  }

  /// Overwrites the layer's gradients.
  /// @pre forward() was called with the same batch
  void backward(Layer<Scalar>& layer, const Matrix<Scalar>& output_gradient) const {
    layer.weight_gradient.noalias() = output_gradient * patches_.transpose();
    layer.bias_gradient.noalias() = row_sums(output_gradient);  // copied: moved, it would be another array
  }

  /// The gradient with respect to the input.
  void input_gradient(const Layer<Scalar>& layer, const Matrix<Scalar>& output_gradient, Matrix<Scalar>& gradient) {
    const Eigen::Index samples = output_gradient.cols() / output_.pixels();
    patch_gradient_.noalias() = layer.weight.transpose() * output_gradient;
    gradient.setZero(input_.channels, samples * input_.pixels());
    for_each_run(samples, [&](Eigen::Index patch, Eigen::Index pixel, Eigen::Index length) {
      const Scalar* from = patch_gradient_.data() + patch;
      Scalar* to = gradient.data() + pixel;
      for (Eigen::Index i = 0; i < length; ++i) to[i] += from[i];
    });
  }

 private:
  /// Calls f(offset in the patches, offset in the input, length) for every kernel row of every output pixel, without
  /// the part in the padding.
  template <class F>
  void for_each_run(Eigen::Index samples, F&& f) const {
    const Eigen::Index channels = input_.channels;
    Eigen::Index patch = 0;
    for (Eigen::Index sample = 0; sample < samples; ++sample) {
      for (Eigen::Index y = -padding_; y < output_.height - padding_; ++y) {
        for (Eigen::Index x = -padding_; x < output_.width - padding_; ++x, patch += patch_size()) {
          const Eigen::Index left = std::max<Eigen::Index>(0, -x);
          const Eigen::Index right = std::min(kernel_, input_.width - x);
          const Eigen::Index top = std::max<Eigen::Index>(0, -y);
          const Eigen::Index bottom = std::min(kernel_, input_.height - y);
          for (Eigen::Index row = top; row < bottom; ++row) {
            const Eigen::Index pixel = (sample * input_.height + y + row) * input_.width + x + left;
            f(patch + (row * kernel_ + left) * channels, pixel * channels, (right - left) * channels);
          }
        }
      }
    }
  }

  ImageShape input_;
  ImageShape output_;
  Eigen::Index kernel_;
  Eigen::Index padding_;
  Matrix<Scalar> patches_;
  Matrix<Scalar> patch_gradient_;
};

}  // namespace examples
