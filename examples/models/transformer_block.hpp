// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <string>
#include <tuple>

#include "causal_attention.hpp"
#include "gelu.hpp"
#include "layer_norm.hpp"
#include "linear.hpp"

namespace examples {

/// Attention and a perceptron of four times the width, each after a layer norm and with a residual connection.
template <class Weight>
class TransformerBlock {
 public:
  using Scalar = distx::accumulator_t<Weight>;

  /// @param blocks the number of blocks: initial contributions to the residual stream shrink with it (Radford et al.,
  ///        2019)
  /// @param epsilon of the layer norms
  TransformerBlock(const std::string& name, Eigen::Index width, Eigen::Index heads, Eigen::Index blocks, double epsilon,
                   InitialWeights& initial)
      : norm1_(name + ".norm1", width, epsilon, initial),
        projections_(name + ".projections", width, 3 * width, deviation(width), initial),
        attention_(width, heads),
        output_(name + ".output", width, width, deviation(width) / residual(blocks), initial),
        norm2_(name + ".norm2", width, epsilon, initial),
        wide_(name + ".wide", width, 4 * width, deviation(width), initial),
        narrow_(name + ".narrow", 4 * width, width, deviation(4 * width) / residual(blocks), initial) {}

  [[nodiscard]] auto parameters() const {
    return std::apply([](const auto*... all) { return std::array{all...}; },
                      std::tuple_cat(norm1_.parameters(), projections_.parameters(), output_.parameters(),
                                     norm2_.parameters(), wide_.parameters(), narrow_.parameters()));
  }

  /// Adds to the stream of width × tokens.
  template <class Training>
  void forward(Matrix<Scalar>& stream, Eigen::Index length, Training& training) {
    const auto weights = unshard(training);
    norm1_.forward(stream, normal1_);
    projections_.forward(normal1_, projected_);
    attention_.forward(projected_, length, attended_);
    output_.forward(attended_, added_);
    stream += added_;
    norm2_.forward(stream, normal2_);
    wide_.forward(normal2_, before_);
    gelu_.forward(before_, activated_);
    narrow_.forward(activated_, added_);
    stream += added_;
  }

  /// Turns the gradient of the residual stream after the block into the one before it.
  /// @pre forward() was called with the same batch
  template <class Training>
  void backward(Matrix<Scalar>& gradient, Training& training) {
    const auto weights = unshard(training);
    narrow_.backward(activated_, gradient, wide_gradient_, training);
    gelu_.backward(before_, wide_gradient_);
    wide_.backward(normal2_, wide_gradient_, gradient_, training);
    norm2_.backward(gradient_, gradient, training);
    output_.backward(attended_, gradient, gradient_, training);
    attention_.backward(projected_, gradient_, wide_gradient_);
    projections_.backward(normal1_, wide_gradient_, gradient_, training);
    norm1_.backward(gradient_, gradient, training);
  }

 private:
  static double deviation(Eigen::Index inputs) { return 0.5 / std::sqrt(static_cast<double>(inputs)); }
  static double residual(Eigen::Index blocks) { return std::sqrt(2.0 * static_cast<double>(blocks)); }

  template <class Training>
  [[nodiscard]] auto unshard(Training& training) const {
    return std::apply([&](const auto*... all) { return training.unshard(*all...); }, parameters());
  }

  LayerNorm<Weight> norm1_;
  Linear<Weight> projections_;  // to queries, keys and values
  CausalAttention<Scalar> attention_;
  Linear<Weight> output_;
  LayerNorm<Weight> norm2_;
  Linear<Weight> wide_;
  Gelu<Scalar> gelu_;
  Linear<Weight> narrow_;
  Matrix<Scalar> normal1_, projected_, attended_, normal2_, before_, activated_, added_;
  Matrix<Scalar> gradient_, wide_gradient_;
};

}  // namespace examples
