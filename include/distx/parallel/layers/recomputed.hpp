// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/layers/activations.hpp"

namespace distx::inline DISTX_ABI::layers {

/// A layer that keeps only its input for the backward pass, which repeats the forward pass first (Chen et al., 2016,
/// arXiv 1604.06174), with the same bits. The layer's communication of the forward pass is repeated too; at stage 3 its
/// weights are gathered once more.
/// @tparam Layer  a layer whose `forward` takes one tensor, such as TransformerBlock
template <class Layer>
class Recomputed {
 public:
  /// Constructs the layer from its arguments.
  template <class... Args>
    requires std::constructible_from<Layer, Args...>
  explicit Recomputed(Args&&... args) : layer_(std::forward<Args>(args)...) {}

  /// Calls f(parameter) for every TensorParameter.
  template <class F>
  void for_each_parameter(F&& f) const {
    layer_.for_each_parameter(f);
  }

  /// Returns the layer's output for `x`, and `x` as the activations. Collective as the layer's.
  template <DistributedTensor X, class Training>
  [[nodiscard]] auto forward(X x, Training& training) const {
    Activations<X> input(training, std::move(x));
    auto output = layer_.forward(std::get<0>(input.kept()).clone(), training).output;
    return Forward{std::move(output), std::move(input)};
  }
  /// Returns the gradient of `x`, and declares the weights' gradients ready. Collective as the layer's `forward` and
  /// `backward` together.
  template <DistributedTensor X, class G, class Training>
  [[nodiscard]] auto backward(Activations<X> input, const G& gradient, Training& training) const {
    auto x = std::move(std::get<0>(input.kept()));
    static_cast<void>(Activations(std::move(input)));  // counted by the layer from now on
    auto activations = layer_.forward(std::move(x), training).activations;
    return layer_.backward(std::move(activations), gradient, training);
  }

 private:
  Layer layer_;
};

}  // namespace distx::inline DISTX_ABI::layers
