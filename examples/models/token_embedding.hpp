// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>

#include "../data/tokens.hpp"
#include "parameter_matrix.hpp"

namespace examples {

/// A vector for each token of a vocabulary and one for each place in a sequence; the tokens' vectors are also how each
/// token is recognised at the output (Press and Wolf, 2017, arXiv 1608.05859).
template <class Weight>
class TokenEmbedding {
 public:
  using Scalar = distx::accumulator_t<Weight>;

  TokenEmbedding(const std::string& name, Eigen::Index vocabulary, Eigen::Index context, Eigen::Index width,
                 InitialWeights& initial)
      : vocabulary_(vocabulary),
        context_(context),
        width_(width),
        tokens_(initial.uniform<Weight>(name + ".tokens", vocabulary * width, deviation, {.uses = 2})),
        positions_(initial.next_unit().uniform<Weight>(name + ".positions", context * width, deviation)) {}

  [[nodiscard]] std::array<const distx::Parameter<Weight>*, 2> parameters() const { return {&tokens_, &positions_}; }
  /// Vocabulary × width; used twice.
  [[nodiscard]] const distx::Parameter<Weight>& tokens() const { return tokens_; }

  /// The stream of width × tokens, sequence after sequence.
  /// @pre every token is below the vocabulary; length divides their number and is at most the context
  template <class Training>
  void forward(std::span<const Token> tokens, Eigen::Index length, Matrix<Scalar>& stream, Training& training) const {
    const auto weights = training.unshard(tokens_, positions_);
    const auto vectors = matrix_of(tokens_, vocabulary_, width_);
    const auto positions = matrix_of(positions_, context_, width_);
    stream.resize(width_, static_cast<Eigen::Index>(tokens.size()));
    for (Eigen::Index i = 0; i < stream.cols(); ++i) {
      stream.col(i) = (vectors.row(tokens[static_cast<std::size_t>(i)]) + positions.row(i % length)).transpose();
    }
  }

  /// The gradients of the parameters, which are ready then.
  template <class Training>
  void backward(std::span<const Token> tokens, Eigen::Index length, const Matrix<Scalar>& gradient,
                Training& training) const {
    RowMatrix<Scalar> vectors = RowMatrix<Scalar>::Zero(vocabulary_, width_);
    RowMatrix<Scalar> positions = RowMatrix<Scalar>::Zero(context_, width_);
    for (Eigen::Index i = 0; i < gradient.cols(); ++i) {
      vectors.row(tokens[static_cast<std::size_t>(i)]) += gradient.col(i).transpose();
      positions.row(i % length) += gradient.col(i).transpose();
    }
    add_to_gradient(tokens_, vectors);
    add_to_gradient(positions_, positions);
    training.ready(tokens_, positions_);
  }

  /// vocabulary × tokens: how much each token of the vocabulary is to be expected.
  /// @pre the tokens' vectors may be read now
  void logits(const Matrix<Scalar>& stream, Matrix<Scalar>& output) const {
    output.noalias() = matrix_of(tokens_, vocabulary_, width_) * stream;
  }

  /// The gradient of the tokens' vectors as recognisers, which is ready then, and that of the stream.
  template <class Training>
  void logits_backward(const Matrix<Scalar>& stream, const Matrix<Scalar>& output_gradient,
                       Matrix<Scalar>& stream_gradient, Training& training) const {
    add_to_gradient(tokens_, output_gradient * stream.transpose());
    training.ready(tokens_);
    stream_gradient.noalias() = matrix_of(tokens_, vocabulary_, width_).transpose() * output_gradient;
  }

 private:
  static constexpr double deviation = 0.02;  // small, so that the first guess is that all tokens are equally likely

  Eigen::Index vocabulary_;
  Eigen::Index context_;
  Eigen::Index width_;
  distx::Parameter<Weight> tokens_;
  distx::Parameter<Weight> positions_;
};

}  // namespace examples
