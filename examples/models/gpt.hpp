// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "softmax_cross_entropy.hpp"
#include "token_embedding.hpp"
#include "transformer_block.hpp"

namespace examples {

/// The size of a Gpt.
struct GptShape {
  std::size_t vocabulary = 0;  ///< different tokens, at least 2
  std::size_t context = 0;     ///< tokens that it looks at, at most
  std::size_t width = 0;       ///< numbers that describe a token
  std::size_t layers = 0;
  std::size_t heads = 0;  ///< of each layer's attention; divides the width
  double epsilon = 1e-5;  ///< added to the variance by layer norms
};

/// Returns `shape`.
/// @throws std::invalid_argument if it is invalid
inline const GptShape& checked_shape(const GptShape& shape) {
  if (shape.vocabulary < 2 || shape.vocabulary - 1 > std::numeric_limits<Token>::max()) {
    throw std::invalid_argument("Gpt: a vocabulary of " + std::to_string(shape.vocabulary) +
                                " tokens: it must have 2 to 2^32");
  }
  if (shape.context < 1 || shape.width < 1 || shape.layers < 1 || shape.heads < 1) {
    throw std::invalid_argument("Gpt: context, width, layers and heads must be at least 1");
  }
  if (shape.width % shape.heads != 0) {
    throw std::invalid_argument("Gpt: a width of " + std::to_string(shape.width) + " is not divisible by " +
                                std::to_string(shape.heads) + " heads: choose a multiple");
  }
  return shape;
}
/// @throws std::invalid_argument for a token outside the vocabulary, or sequences longer than the context
inline void check_tokens(const GptShape& shape, std::span<const Token> tokens, std::size_t length) {
  if (length == 0 || length > shape.context || tokens.empty() || tokens.size() % length != 0) {
    throw std::invalid_argument("Gpt: " + std::to_string(tokens.size()) + " tokens in sequences of " +
                                std::to_string(length) + ": pass whole sequences of 1 to " +
                                std::to_string(shape.context) + " tokens");
  }
  const auto largest = *std::max_element(tokens.begin(), tokens.end());
  if (largest >= shape.vocabulary) {
    throw std::invalid_argument("Gpt: token " + std::to_string(largest) + " is not among the " +
                                std::to_string(shape.vocabulary) + " of the vocabulary");
  }
}

/// A transformer that guesses each next token of a sequence from those before it: that of GPT-2 (Radford et al., 2019,
/// Language Models are Unsupervised Multitask Learners), without dropout.
///
/// Weight is float, double, or distx::bfloat16, which is computed in float. The parameters belong to the training,
/// which forward and backward are passed: anything with `unshard(parameters…)`, whose result is kept while their values
/// are read, and `ready(parameters…)`, called as their gradients become final, the last layer's first.
template <class Weight>
class BasicGpt {
 public:
  /// Whether the rows of weights are their inputs, as those of GPT-2 in a Hugging Face folder.
  static constexpr bool inputs_first = false;

  using Scalar = distx::accumulator_t<Weight>;

  /// The same seed gives the same initial bits everywhere.
  /// @throws std::invalid_argument for a shape that is none
  BasicGpt(const GptShape& shape, std::uint64_t seed) : BasicGpt(checked_shape(shape), InitialWeights(seed)) {}

  [[nodiscard]] const GptShape& shape() const { return shape_; }

  /// All parameters in forward order; they stay where they are for as long as the model does.
  [[nodiscard]] std::vector<const distx::Parameter<Weight>*> parameters() const {
    std::vector<const distx::Parameter<Weight>*> all;
    const auto add = [&](const auto&... more) { (all.push_back(more), ...); };
    std::apply(add, embedding_.parameters());
    for (const auto& block : blocks_) std::apply(add, block.parameters());
    std::apply(add, norm_.parameters());
    return all;
  }

  /// vocabulary × tokens: how much each token is expected next, as the logarithm of its share.
  /// @param tokens sequences of `length` one after another
  /// @throws std::invalid_argument for a token outside the vocabulary, or sequences longer than the context
  template <class Training>
  const Matrix<Scalar>& logits(std::span<const Token> tokens, std::size_t length, Training& training) {
    check_tokens(shape_, tokens, length);
    length_ = static_cast<Eigen::Index>(length);
    ran_forward_ = false;
    embedding_.forward(tokens, length_, stream_, training);
    for (auto& block : blocks_) block.forward(stream_, length_, training);
    const auto weights = unshard_head(training);
    norm_.forward(stream_, normal_);
    embedding_.logits(normal_, logits_);
    return logits_;
  }

  /// The mean loss: how unexpected the targets are, in nats per token.
  /// @param targets what follows each token
  /// @throws std::invalid_argument as logits() does
  template <class Training>
  Scalar forward(std::span<const Token> tokens, std::span<const Token> targets, std::size_t length,
                 Training& training) {
    check_tokens(shape_, targets, length);
    if (tokens.size() != targets.size()) {
      throw std::invalid_argument("Gpt: " + std::to_string(tokens.size()) + " tokens and " +
                                  std::to_string(targets.size()) + " targets: pass what follows each token");
    }
    logits(tokens, length, training);
    tokens_.assign(tokens.begin(), tokens.end());
    ran_forward_ = true;
    return softmax_cross_entropy<Scalar>(logits_, targets, logits_gradient_);
  }

  /// Adds `share` times the gradients of the loss that forward() last gave.
  /// @throws std::logic_error unless forward() was called since the last backward() and logits()
  template <class Training>
  void backward(Training& training, Scalar share = 1) {
    if (!ran_forward_) throw std::logic_error("Gpt: backward() has no forward() to follow: call forward() first");
    ran_forward_ = false;
    if (share != 1) logits_gradient_ *= share;
    {
      const auto weights = unshard_head(training);
      embedding_.logits_backward(normal_, logits_gradient_, normal_gradient_, training);
      gradient_.setZero(normal_gradient_.rows(), normal_gradient_.cols());
      norm_.backward(normal_gradient_, gradient_, training);
    }
    for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) block->backward(gradient_, training);
    embedding_.backward(tokens_, length_, gradient_, training);
  }

 private:
  BasicGpt(const GptShape& shape, InitialWeights initial)
      : shape_(shape),
        embedding_("embedding", index(shape.vocabulary), index(shape.context), index(shape.width), initial),
        blocks_(blocks(shape, initial)),
        norm_("norm", index(shape.width), shape.epsilon, initial.next_unit()) {}

  static Eigen::Index index(std::size_t number) { return static_cast<Eigen::Index>(number); }

  static std::vector<TransformerBlock<Weight>> blocks(const GptShape& shape, InitialWeights& initial) {
    std::vector<TransformerBlock<Weight>> all;
    all.reserve(shape.layers);
    for (std::size_t i = 0; i < shape.layers; ++i) {
      all.emplace_back("block" + std::to_string(i), index(shape.width), index(shape.heads), index(shape.layers),
                       shape.epsilon, initial.next_unit());
    }
    return all;
  }

  template <class Training>
  [[nodiscard]] auto unshard_head(Training& training) const {
    const auto [scale, shift] = norm_.parameters();
    return training.unshard(*scale, *shift, embedding_.tokens());
  }

  GptShape shape_;
  TokenEmbedding<Weight> embedding_;
  std::vector<TransformerBlock<Weight>> blocks_;
  LayerNorm<Weight> norm_;
  Eigen::Index length_ = 0;
  std::vector<Token> tokens_;
  Matrix<Scalar> stream_, normal_, logits_;
  Matrix<Scalar> logits_gradient_, normal_gradient_, gradient_;
  bool ran_forward_ = false;
};

using Gpt = BasicGpt<float>;

/// Calls f(name, values) with each weight, in forward order. Collective.
template <class Weight, class Training, class F>
void for_each_whole_weight(const BasicGpt<Weight>& model, Training& training, F&& f) {
  for (const auto* parameter : model.parameters()) {
    const auto weights = training.unshard(*parameter);
    f(parameter->name(), std::span<const Weight>(parameter->value().data(), parameter->size()));
  }
}

}  // namespace examples
