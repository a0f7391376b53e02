// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/layers/attention.hpp"
#include "distx/parallel/layers/layer_norm.hpp"
#include "distx/parallel/layers/mlp.hpp"
#include "distx/tensor/ops/arithmetic.hpp"

namespace distx::inline DISTX_ABI::layers {

/// The sequential transformer block of GPT-2: attention and then an MLP of four times the width, each after a layer
/// norm and inside a residual connection. It communicates twice forward and twice backward.
/// @tparam T  the element type
/// @tparam Split  a TensorParallel
template <class T, class Split>
class TransformerBlock {
 public:
  /// @param width, heads  of the residual stream and of the attention; heads divides width
  /// @param initial  has the functions `projections`, `output`, `wide` and `narrow`, which return first weights
  /// @throws InvalidArgument unless heads divides width
  template <class Initial>
  TransformerBlock(const std::string& name, const typename Split::mesh& mesh, std::size_t width, std::size_t heads,
                   const Initial& initial)
      : norm1_(name + ".norm1", mesh, width),
        attention_(name, mesh, width, heads, initial.projections, initial.output),
        norm2_(name + ".norm2", mesh, width),
        mlp_(name, mesh, width, 4 * width, initial.wide, initial.narrow) {}

  /// Calls f(parameter) for every TensorParameter.
  template <class F>
  void for_each_parameter(F&& f) const {
    norm1_.for_each_parameter(f);
    attention_.for_each_parameter(f);
    norm2_.for_each_parameter(f);
    mlp_.for_each_parameter(f);
  }

  /// Returns the block's output for `x`, (batch, length, width) in the residual layout. Collective over the model axis.
  template <class X, class Training>
  [[nodiscard]] X forward(const X& x, Training& training) {
    const auto between = ops::add(x, attention_.forward(norm1_.forward(x, training), training));
    return ops::add(between, mlp_.forward(norm2_.forward(between, training), training));
  }
  /// Returns the gradient of `x`, and declares the weights' gradients ready. Collective over the model axis.
  /// @throws InvalidState without a matching `forward`
  template <class G, class Training>
  [[nodiscard]] G backward(const G& gradient, Training& training) {
    const auto between = ops::add(gradient, norm2_.backward(mlp_.backward(gradient, training), training));
    return ops::add(between, norm1_.backward(attention_.backward(between, training), training));
  }

 private:
  ParallelLayerNorm<T, Split> norm1_;
  ParallelAttention<T, Split> attention_;
  ParallelLayerNorm<T, Split> norm2_;
  ParallelMlp<T, Split> mlp_;
};

/// The parallel transformer block of GPT-J and PaLM (Chowdhery et al., 2022, arXiv 2204.02311): attention and MLP share
/// a layer norm and a residual connection. It communicates once forward and once backward, since the sum of their
/// Partial results is Partial.
/// @tparam T  the element type
/// @tparam Split  a TensorParallel
template <class T, class Split>
class ParallelAttentionMlpBlock {
 public:
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

  /// Returns the block's output for `x`, (batch, length, width) in the residual layout. Collective over the model axis.
  template <class X, class Training>
  [[nodiscard]] X forward(const X& x, Training& training) {
    auto tokens = redistribute<typename Split::tokens>(norm_.forward(x, training));
    auto attended = attention_.terms(tokens.clone(), training);
    auto total = redistribute<typename Split::residual>(ops::add(attended, mlp_.terms(std::move(tokens), training)));
    return ops::add(x, attention_.output().add_bias(mlp_.output().add_bias(total, training), training));
  }
  /// Returns the gradient of `x`, and declares the weights' gradients ready. Collective over the model axis.
  /// @throws InvalidState without a matching `forward`
  template <class G, class Training>
  [[nodiscard]] G backward(const G& gradient, Training& training) {
    attention_.output().add_bias_backward(gradient, training);
    mlp_.output().add_bias_backward(gradient, training);
    const auto tokens = redistribute<typename Split::tokens>(gradient);
    auto terms = ops::add(mlp_.terms_backward(tokens, training), attention_.terms_backward(tokens, training));
    return ops::add(gradient, norm_.backward(redistribute<typename Split::residual>(std::move(terms)), training));
  }

 private:
  ParallelLayerNorm<T, Split> norm_;
  ParallelAttention<T, Split> attention_;
  ParallelMlp<T, Split> mlp_;
};

}  // namespace distx::inline DISTX_ABI::layers
