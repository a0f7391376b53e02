// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/layers/detail/residual_branch.hpp"
#include "distx/tensor/ops/activations.hpp"

namespace distx::inline DISTX_ABI::layers {

/// Two linear layers with a GELU between them; the inner width is sharded over the model axis.
///
/// `forward` and `backward` map (batch, length, width) tensors of the residual layout to the same shape.
/// @tparam T  the element type
/// @tparam Split  a TensorParallel
template <class T, class Split>
class ParallelMlp : public detail::ResidualBranch<ParallelMlp<T, Split>, Split> {
  using Inner = typename Split::template tensor<T, 3, typename Split::tokens, Shard<2, typename Split::model>>;
  using Tokens = typename Split::template tensor<T, 3, typename Split::tokens>;

 public:
  /// Tokens, inputs of the GELU, and its outputs.
  using activations = Activations<Tokens, Inner, Inner>;

  /// @param wide  wide(index) returns the first weight at an index of (width, inner)
  /// @param narrow  narrow(index) returns the first weight at an index of (inner, width)
  template <class F, class G>
  ParallelMlp(const std::string& name, const typename Split::mesh& mesh, std::size_t width, std::size_t inner, F wide,
              G narrow)
      : wide_(name + ".wide", mesh, {width, inner}, std::move(wide)),
        narrow_(name + ".narrow", mesh, {inner, width}, std::move(narrow)) {}

  /// Calls f(parameter) for every TensorParameter.
  template <class F>
  void for_each_parameter(F&& f) const {
    wide_.for_each_parameter(f);
    narrow_.for_each_parameter(f);
  }

  /// Computes this rank's terms of the result, Partial over the model axis, from all tokens of its batches. Local.
  template <class Training>
  [[nodiscard]] auto terms(Tokens tokens, Training& training) const {
    auto inner = wide_.forward(tokens, training);
    auto active = ops::gelu(inner);
    auto terms = narrow_.forward(active, training);
    return Forward{std::move(terms), activations(training, std::move(tokens), std::move(inner), std::move(active))};
  }
  /// Returns the terms of the tokens' gradient, Partial over the model axis. Local.
  template <class G, class Training>
  [[nodiscard]] auto terms_backward(activations kept, const G& gradient, Training& training) const {
    const auto& [tokens, inner, active] = kept.kept();
    const auto inner_gradient = ops::gelu_backward(inner, narrow_.backward(active, gradient, training));
    return wide_.backward(tokens, inner_gradient, training);
  }
  /// Returns the output layer.
  [[nodiscard]] const auto& output() const { return narrow_; }

 private:
  ColumnParallel<T, Split> wide_;
  RowParallel<T, Split> narrow_;
};

}  // namespace distx::inline DISTX_ABI::layers
