// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/layers/attention.hpp"
#include "distx/parallel/layers/layer_norm.hpp"
#include "distx/parallel/layers/mlp.hpp"
#include "distx/tensor/ops/arithmetic.hpp"

namespace distx {

/// Attention and then a perceptron of four times the width, each behind a layer norm and beside a residual connection,
/// as in GPT-2: two branches, each of which communicates.
template <class T, class Split>
class ParallelBlock {
 public:
  /// `Initial` has the functions that give the first weights: `projections`, `output`, `wide`, `narrow`, as the layers
  /// take them.
  template <class Initial>
  ParallelBlock(const std::string& name, const typename Split::mesh& mesh, std::size_t width, std::size_t heads,
                const Initial& initial)
      : norm1_(name + ".norm1", mesh, width),
        attention_(name, mesh, width, heads, initial.projections, initial.output),
        norm2_(name + ".norm2", mesh, width),
        mlp_(name, mesh, width, 4 * width, initial.wide, initial.narrow) {}

  template <class F>
  void for_each_parameter(F&& f) const {
    norm1_.for_each_parameter(f);
    attention_.for_each_parameter(f);
    norm2_.for_each_parameter(f);
    mlp_.for_each_parameter(f);
  }

  template <class X, class Training>
  [[nodiscard]] X forward(const X& x, Training& training) {
    const auto between = add(x, attention_.forward(norm1_.forward(x, training), training));
    return add(between, mlp_.forward(norm2_.forward(between, training), training));
  }
  template <class G, class Training>
  [[nodiscard]] G backward(const G& gradient, Training& training) {
    const auto between = add(gradient, norm2_.backward(mlp_.backward(gradient, training), training));
    return add(between, norm1_.backward(attention_.backward(between, training), training));
  }

 private:
  StreamNorm<T, Split> norm1_;
  ParallelAttention<T, Split> attention_;
  StreamNorm<T, Split> norm2_;
  ParallelMlp<T, Split> mlp_;
};

/// Attention and a perceptron side by side behind one layer norm, as in GPT-J and PaLM (Chowdhery et al., 2022, arXiv
/// 2204.02311): the sum of their Partials is one Partial, so that a block communicates once forward and once backward.
template <class T, class Split>
class JoinedBlock {
 public:
  /// @see ParallelBlock
  template <class Initial>
  JoinedBlock(const std::string& name, const typename Split::mesh& mesh, std::size_t width, std::size_t heads,
              const Initial& initial)
      : norm_(name + ".norm", mesh, width),
        attention_(name, mesh, width, heads, initial.projections, initial.output),
        mlp_(name, mesh, width, 4 * width, initial.wide, initial.narrow) {}

  template <class F>
  void for_each_parameter(F&& f) const {
    norm_.for_each_parameter(f);
    attention_.for_each_parameter(f);
    mlp_.for_each_parameter(f);
  }

  template <class X, class Training>
  [[nodiscard]] X forward(const X& x, Training& training) {
    auto tokens = redistribute<typename Split::tokens>(norm_.forward(x, training));
    auto attended = attention_.terms(tokens.clone(), training);
    auto total = redistribute<typename Split::stream>(add(attended, mlp_.terms(std::move(tokens), training)));
    return add(x, attention_.output().add_bias(mlp_.output().add_bias(total, training), training));
  }
  template <class G, class Training>
  [[nodiscard]] G backward(const G& gradient, Training& training) {
    attention_.output().add_bias_backward(gradient, training);
    mlp_.output().add_bias_backward(gradient, training);
    const auto tokens = redistribute<typename Split::tokens>(gradient);
    auto terms = add(mlp_.terms_backward(tokens, training), attention_.terms_backward(tokens, training));
    return add(gradient, norm_.backward(redistribute<typename Split::stream>(std::move(terms)), training));
  }

 private:
  StreamNorm<T, Split> norm_;
  ParallelAttention<T, Split> attention_;
  ParallelMlp<T, Split> mlp_;
};

}  // namespace distx
