// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <array>

#include "image_shape.hpp"
#include "layer.hpp"

namespace examples {

/// The mean of each 2 × 2 pixels; an odd last row or column is left out.
template <class Scalar>
class AveragePooling {
 public:
  /// @pre the input has at least 2 × 2 pixels
  explicit AveragePooling(const ImageShape& input)
      : input_(input), output_{input.channels, input.height / 2, input.width / 2} {}

  [[nodiscard]] const ImageShape& output() const { return output_; }

  void forward(const Matrix<Scalar>& input, Matrix<Scalar>& output) const {
    const Eigen::Index samples = input.cols() / input_.pixels();
    output.resize(output_.channels, samples * output_.pixels());
    for_each_window(samples, [&](Eigen::Index to, const std::array<Eigen::Index, 4>& from) {
      output.col(to) =
          Scalar(0.25) * (input.col(from[0]) + input.col(from[1]) + input.col(from[2]) + input.col(from[3]));
    });
  }

  /// The gradient with respect to the input.
  void input_gradient(const MatrixRef<Scalar>& output_gradient, Matrix<Scalar>& gradient) const {
    const Eigen::Index samples = output_gradient.cols() / output_.pixels();
    gradient.setZero(input_.channels, samples * input_.pixels());
    for_each_window(samples, [&](Eigen::Index to, const std::array<Eigen::Index, 4>& from) {
      for (const Eigen::Index pixel : from) gradient.col(pixel) = Scalar(0.25) * output_gradient.col(to);
    });
  }

 private:
  /// Calls f(output column, the four input columns) for every output pixel.
  template <class F>
  void for_each_window(Eigen::Index samples, F&& f) const {
    Eigen::Index to = 0;
    for (Eigen::Index sample = 0; sample < samples; ++sample) {
      for (Eigen::Index y = 0; y < output_.height; ++y) {
        for (Eigen::Index x = 0; x < output_.width; ++x, ++to) {
          const Eigen::Index first = (sample * input_.height + 2 * y) * input_.width + 2 * x;
          f(to, std::array{first, first + 1, first + input_.width, first + input_.width + 1});
        }
      }
    }
  }

  ImageShape input_;
  ImageShape output_;
};

}  // namespace examples
