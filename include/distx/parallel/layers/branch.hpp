// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/layers/linear.hpp"

namespace distx {

/// What is beside a residual connection: a ColumnParallel layer, a function of each rank's own part, and a RowParallel
/// one. Communicates once forward and once backward, with an all-reduce; or with a gather and a reduce-scatter each way
/// where tokens are shared out.
///
/// `Derived` has `terms(tokens, training)` and `terms_backward(gradient, training)`, without communication, and the
/// layer `output()`. Several branches with the same input may share the communication, for a sum of Partials is one.
template <class Derived, class Split>
class Branch {
 public:
  /// From the stream to what is added to it.
  template <class X, class Training>
  [[nodiscard]] auto forward(X&& x, Training& training) {
    auto terms = self().terms(redistribute<typename Split::tokens>(std::forward<X>(x)), training);
    return self().output().add_bias(redistribute<typename Split::stream>(std::move(terms)), training);
  }
  /// The gradient of the stream; those of the weights are ready then.
  template <class G, class Training>
  [[nodiscard]] auto backward(const G& gradient, Training& training) {
    self().output().add_bias_backward(gradient, training);
    return redistribute<typename Split::stream>(
        self().terms_backward(redistribute<typename Split::tokens>(gradient), training));
  }

 private:
  friend Derived;
  Branch() = default;
  Derived& self() { return static_cast<Derived&>(*this); }
};

}  // namespace distx
