// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/layers/linear.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The branch of a residual connection, such as a ColumnParallel layer, a local function, and a RowParallel layer.
///
/// Along the model axis it communicates once forward and once backward: an all-reduce, or with sequence parallelism an
/// all-gather and a reduce-scatter. `Derived` has the type `activations`, `terms(tokens, training)` and
/// `terms_backward(activations, gradient, training)`, which are local along the model axis, and the layer `output()`.
/// Branches with the same input may share the communication, since a sum of Partials is Partial.
template <class Derived, class Split>
class ResidualBranch {
 public:
  /// Computes what is added to the residual stream `x`, (batch, length, width). Collective over the model axis.
  template <class X, class Training>
  [[nodiscard]] auto forward(X&& x, Training& training) const {
    auto [terms, kept] = self().terms(redistribute<typename Split::tokens>(std::forward<X>(x)), training);
    return layers::Forward{self().output().add_bias(redistribute<typename Split::residual>(std::move(terms)), training),
                           std::move(kept)};
  }
  /// Returns the gradient of `x` from that of the result, and declares the weights' gradients ready. Collective over
  /// the model axis. @throws InvalidState if `kept` was moved from
  template <class Kept, class G, class Training>
  [[nodiscard]] auto backward(Kept kept, const G& gradient, Training& training) const {
    static_cast<void>(kept.kept());  // throws before anything is ready
    self().output().add_bias_backward(gradient, training);
    return redistribute<typename Split::residual>(
        self().terms_backward(std::move(kept), redistribute<typename Split::tokens>(gradient), training));
  }

 private:
  friend Derived;
  ResidualBranch() = default;
  [[nodiscard]] const Derived& self() const { return static_cast<const Derived&>(*this); }
};

}  // namespace distx::inline DISTX_ABI::detail
