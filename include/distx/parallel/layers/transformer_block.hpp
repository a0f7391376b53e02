// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/layers/attention.hpp"
#include "distx/parallel/layers/layer_norm.hpp"
#include "distx/parallel/layers/mlp.hpp"
#include "distx/tensor/ops/arithmetic.hpp"

namespace distx::inline DISTX_ABI::layers {

/// The sequential transformer block of GPT-2: attention and then an MLP of four times the width, or another branch,
/// each after a layer norm and inside a residual connection. Along the model axis it communicates twice forward and
/// twice backward; along others as its branches do.
/// @tparam T  the element type
/// @tparam Split  a TensorParallel
/// @tparam Mlp  the second branch: a ParallelMlp, or ParallelExperts
template <class T, class Split, class Mlp = ParallelMlp<T, Split>>
class TransformerBlock {
  using Stream = typename Split::template tensor<T, 3, typename Split::residual>;
  using Attention = ParallelAttention<T, Split>;

 public:
  /// The inputs of the two norms, and what the branches keep.
  using activations = Activations<Stream, typename Attention::activations, Stream, typename Mlp::activations>;

  /// @param width, heads  of the residual stream and of the attention; heads divides width
  /// @param initial  has the functions `projections`, `output`, `wide` and `narrow`, which return first weights
  /// @param epsilon  of the layer norms
  /// @throws InvalidArgument unless heads divides width
  template <class Initial>
  TransformerBlock(const std::string& name, const typename Split::mesh& mesh, std::size_t width, std::size_t heads,
                   const Initial& initial, double epsilon = detail::layer_norm_epsilon)
    requires std::same_as<Mlp, ParallelMlp<T, Split>>
      : TransformerBlock(name, mesh, width, heads, initial,
                         Mlp(name, mesh, width, 4 * width, initial.wide, initial.narrow), epsilon) {}
  /// Constructs a block with another second branch, for which `initial` needs no functions.
  template <class Initial>
  TransformerBlock(const std::string& name, const typename Split::mesh& mesh, std::size_t width, std::size_t heads,
                   const Initial& initial, Mlp mlp, double epsilon = detail::layer_norm_epsilon)
      : norm1_(name + ".norm1", mesh, width, epsilon),
        attention_(name, mesh, width, heads, initial.projections, initial.output),
        norm2_(name + ".norm2", mesh, width, epsilon),
        mlp_(std::move(mlp)) {}

  /// Calls f(parameter) for every TensorParameter.
  template <class F>
  void for_each_parameter(F&& f) const {
    norm1_.for_each_parameter(f);
    attention_.for_each_parameter(f);
    norm2_.for_each_parameter(f);
    mlp_.for_each_parameter(f);
  }

  /// Computes the block's output for `x`, (batch, length, width) in the residual layout. Collective over the model
  /// axis.
  template <class Training>
  [[nodiscard]] Forward<Stream, activations> forward(Stream x, Training& training) const {
    auto [attended, of_attention] = attention_.forward(norm1_.forward(x, training), training);
    auto between = ops::add(x, attended);
    auto [added, of_mlp] = mlp_.forward(norm2_.forward(between, training), training);
    auto output = ops::add(between, added);
    return {std::move(output),
            activations(training, std::move(x), std::move(of_attention), std::move(between), std::move(of_mlp))};
  }
  /// Returns the gradient of `x`, and declares the weights' gradients ready. Collective over the model axis.
  /// @throws InvalidState if `kept` was moved from
  template <class Training>
  [[nodiscard]] Stream backward(activations kept, const Stream& gradient, Training& training) const {
    auto& [x, of_attention, between, of_mlp] = kept.kept();
    const auto inner = mlp_.backward(std::move(of_mlp), gradient, training);
    const auto slope = ops::add(gradient, norm2_.backward(between, inner, training));
    const auto outer = attention_.backward(std::move(of_attention), slope, training);
    return ops::add(slope, norm1_.backward(x, outer, training));
  }

 private:
  ParallelLayerNorm<T, Split> norm1_;
  Attention attention_;
  ParallelLayerNorm<T, Split> norm2_;
  Mlp mlp_;
};

/// The parallel transformer block of GPT-J and PaLM (Chowdhery et al., 2022, arXiv 2204.02311): attention and MLP share
/// a layer norm and a residual connection. It communicates once forward and once backward, since the sum of their
/// Partial results is Partial.
/// @tparam T  the element type
/// @tparam Split  a TensorParallel
template <class T, class Split>
class ParallelAttentionMlpBlock {
  using Stream = typename Split::template tensor<T, 3, typename Split::residual>;
  using Attention = ParallelAttention<T, Split>;
  using Mlp = ParallelMlp<T, Split>;

 public:
  /// The input, and what the branches keep.
  using activations = Activations<Stream, typename Attention::activations, typename Mlp::activations>;

  /// Constructs a block with the arguments of TransformerBlock.
  template <class Initial>
  ParallelAttentionMlpBlock(const std::string& name, const typename Split::mesh& mesh, std::size_t width,
                            std::size_t heads, const Initial& initial)
      : norm_(name + ".norm", mesh, width),
        attention_(name, mesh, width, heads, initial.projections, initial.output),
        mlp_(name, mesh, width, 4 * width, initial.wide, initial.narrow) {}

  /// Calls f(parameter) for every TensorParameter.
  template <class F>
  void for_each_parameter(F&& f) const {
    norm_.for_each_parameter(f);
    attention_.for_each_parameter(f);
    mlp_.for_each_parameter(f);
  }

  /// Computes the block's output for `x`, (batch, length, width) in the residual layout. Collective over the model
  /// axis.
  template <class Training>
  [[nodiscard]] Forward<Stream, activations> forward(Stream x, Training& training) const {
    auto tokens = redistribute<typename Split::tokens>(norm_.forward(x, training));
    auto [attended, of_attention] = attention_.terms(tokens.clone(), training);
    auto [added, of_mlp] = mlp_.terms(std::move(tokens), training);
    const auto total = redistribute<typename Split::residual>(ops::add(attended, added));
    auto output = ops::add(x, attention_.output().add_bias(mlp_.output().add_bias(total, training), training));
    return {std::move(output), activations(training, std::move(x), std::move(of_attention), std::move(of_mlp))};
  }
  /// Returns the gradient of `x`, and declares the weights' gradients ready. Collective over the model axis.
  /// @throws InvalidState if `kept` was moved from
  template <class Training>
  [[nodiscard]] Stream backward(activations kept, const Stream& gradient, Training& training) const {
    auto& [x, of_attention, of_mlp] = kept.kept();
    attention_.output().add_bias_backward(gradient, training);
    mlp_.output().add_bias_backward(gradient, training);
    const auto tokens = redistribute<typename Split::tokens>(gradient);
    const auto of_inner = mlp_.terms_backward(std::move(of_mlp), tokens, training);
    auto terms = ops::add(of_inner, attention_.terms_backward(std::move(of_attention), tokens, training));
    return ops::add(gradient, norm_.backward(x, redistribute<typename Split::residual>(std::move(terms)), training));
  }

 private:
  ParallelLayerNorm<T, Split> norm_;
  Attention attention_;
  Mlp mlp_;
};

}  // namespace distx::inline DISTX_ABI::layers
