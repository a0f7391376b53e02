// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cmath>

#include "layer.hpp"

namespace examples {

/// Each token's weighted mean over itself and the tokens before it, by several heads (Vaswani et al., 2017, arXiv
/// 1706.03762).
///
/// The input has the queries, the keys and the values of each token, one below the other: 3 · width rows. Each head has
/// its share of the rows of each. Columns are tokens, sequence after sequence.
template <class Scalar>
class CausalAttention {
 public:
  /// @pre heads divides width
  CausalAttention(Eigen::Index width, Eigen::Index heads) : width_(width), heads_(heads) {}

  /// @pre length divides the number of columns
  void forward(const Matrix<Scalar>& input, Eigen::Index length, Matrix<Scalar>& output) {
    length_ = length;
    output.resize(width_, input.cols());
    attention_.resize(length, input.cols() * heads_);
    for_each_head(input.cols(), [&](Eigen::Index row, Eigen::Index column, Eigen::Index place) {
      const auto query = input.block(row, column, size(), length);
      const auto key = input.block(width_ + row, column, size(), length);
      const auto value = input.block(2 * width_ + row, column, size(), length);
      auto attention = attention_.middleCols(place, length);  // a column is what one token attends to
      attention.noalias() = (key.transpose() * query) * scale();
      for (Eigen::Index token = 0; token < length; ++token) {
        auto seen = attention.col(token).head(token + 1);
        seen = (seen.array() - seen.maxCoeff()).exp().matrix();
        seen *= static_cast<Scalar>(1 / seen.template cast<double>().sum());
        attention.col(token).tail(length - token - 1).setZero();
      }
      output.block(row, column, size(), length).noalias() = value * attention;
    });
  }

  /// The gradient with respect to the input.
  /// @pre forward() was called with the same input
  void backward(const Matrix<Scalar>& input, const Matrix<Scalar>& output_gradient, Matrix<Scalar>& gradient) {
    gradient.resize(input.rows(), input.cols());
    for_each_head(input.cols(), [&](Eigen::Index row, Eigen::Index column, Eigen::Index place) {
      const auto query = input.block(row, column, size(), length_);
      const auto key = input.block(width_ + row, column, size(), length_);
      const auto value = input.block(2 * width_ + row, column, size(), length_);
      const auto slope = output_gradient.block(row, column, size(), length_);
      const auto attention = attention_.middleCols(place, length_);
      gradient.block(2 * width_ + row, column, size(), length_).noalias() = slope * attention.transpose();
      scores_.noalias() = value.transpose() * slope;
      for (Eigen::Index token = 0; token < length_; ++token) {
        const auto mean = static_cast<Scalar>(
            scores_.col(token).template cast<double>().dot(attention.col(token).template cast<double>()));
        scores_.col(token) = (scale() * attention.col(token).array() * (scores_.col(token).array() - mean)).matrix();
      }
      gradient.block(row, column, size(), length_).noalias() = key * scores_;
      gradient.block(width_ + row, column, size(), length_).noalias() = query * scores_.transpose();
    });
  }

 private:
  [[nodiscard]] Eigen::Index size() const { return width_ / heads_; }
  [[nodiscard]] Scalar scale() const { return 1 / std::sqrt(static_cast<Scalar>(size())); }

  /// Calls f(first row of the head, first column of the sequence, first column in `attention_`).
  template <class F>
  void for_each_head(Eigen::Index tokens, F&& f) const {
    Eigen::Index place = 0;
    for (Eigen::Index column = 0; column < tokens; column += length_) {
      for (Eigen::Index head = 0; head < heads_; ++head, place += length_) f(head * size(), column, place);
    }
  }

  Eigen::Index width_;
  Eigen::Index heads_;
  Eigen::Index length_ = 0;
  Matrix<Scalar> attention_;  // after the softmax, length × length for each sequence and head
  Matrix<Scalar> scores_;     // the gradient before the softmax, of one head
};

}  // namespace examples
