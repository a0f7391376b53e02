// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <array>
#include <cstdint>

#include "image_shape.hpp"
#include "layer.hpp"

namespace examples {

/// The maximum, then ReLU, of each 2 × 2 pixels; an odd last row or column is left out.
///
/// Taking the maximum first gives what ReLU first would, with a quarter of the work.
template <class Scalar>
class MaxPooling {
 public:
  /// @pre the input has at least 2 × 2 pixels
  explicit MaxPooling(ImageShape input) : input_(input), output_{input.channels, input.height / 2, input.width / 2} {}

  [[nodiscard]] const ImageShape& output() const { return output_; }

  void forward(const Matrix<Scalar>& input, Matrix<Scalar>& output) {
    const Eigen::Index samples = input.cols() / input_.pixels();
    output.resize(output_.channels, samples * output_.pixels());
    winner_.resize(output_.channels, output.cols());
    for_each_window(samples, [&](Eigen::Index to, const std::array<Eigen::Index, 4>& from) {
      for (Eigen::Index channel = 0; channel < output_.channels; ++channel) {
        Scalar largest = 0;
        std::uint8_t winner = nobody;
        for (std::uint8_t i = 0; i < 4; ++i) {
          const Scalar value = input(channel, from[i]);
          if (value > largest) {
            largest = value;
            winner = i;
          }
        }
        output(channel, to) = largest;
        winner_(channel, to) = winner;
      }
    });
  }

  /// The gradient with respect to the input: each output's goes to the pixel that it came from.
  /// @pre forward() was called with the same batch
  void input_gradient(const MatrixRef<Scalar>& output_gradient, Matrix<Scalar>& gradient) const {
    const Eigen::Index samples = output_gradient.cols() / output_.pixels();
    gradient.setZero(input_.channels, samples * input_.pixels());
    for_each_window(samples, [&](Eigen::Index to, const std::array<Eigen::Index, 4>& from) {
      for (Eigen::Index channel = 0; channel < output_.channels; ++channel) {
        const std::uint8_t winner = winner_(channel, to);
        if (winner != nobody) gradient(channel, from[winner]) = output_gradient(channel, to);
      }
    });
  }

 private:
  static constexpr std::uint8_t nobody = 4;  // no pixel is above zero: ReLU lets nothing through

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
  Eigen::Matrix<std::uint8_t, Eigen::Dynamic, Eigen::Dynamic> winner_;
};

}  // namespace examples
