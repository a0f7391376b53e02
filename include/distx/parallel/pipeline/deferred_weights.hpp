// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "distx/parallel/layers/activations.hpp"

namespace distx::inline DISTX_ABI::pipeline {

/// The products of a backward pass that give the gradients of weights, to be computed later, once.
template <class Training>
using WeightWork = std::vector<std::function<void(Training&)>>;

/// Takes a training's place in a backward pass and computes the gradients of the layers' large weights later: the first
/// half of a split backward pass is `layer.backward(kept, gradient, deferred)`, the second the work that `take`
/// returns.
///
/// It copies the operands of each product, and the training counts them as activations until the work is destroyed.
template <class Training>
class DeferredWeights {
 public:
  /// @param training  outlives this object
  explicit DeferredWeights(Training& training) : training_(training) {}

  /// As the training's; gradients of small weights are declared ready at once.
  template <class... Ws>
  [[nodiscard]] auto unshard(const Ws&... weights) {
    return training_.unshard(weights...);
  }
  template <class W, class G>
  void ready(const W& weight, const G& gradient) {
    training_.ready(weight, gradient);
  }
  [[nodiscard]] auto count_activations(std::size_t bytes) { return training_.count_activations(bytes); }

  /// Adds `training.ready(weight, product(a, b))` to the work.
  /// @param weight  outlives the work
  template <class W, class Product, class A, class B>
  void ready_later(const W& weight, Product product, const A& a, const B& b) {
    auto kept = std::make_shared<layers::Activations<A, B>>(training_, a.clone(), b.clone());
    work_.push_back([&weight, product, kept = std::move(kept)](Training& training) {
      const auto& [x, y] = kept->kept();
      training.ready(weight, product(x, y));
    });
  }
  /// Returns the work that was added.
  [[nodiscard]] WeightWork<Training> take() { return std::exchange(work_, {}); }

 private:
  Training& training_;
  WeightWork<Training> work_;
};

/// Does the work and frees its operands, product by product.
template <class Training>
void compute(WeightWork<Training> work, Training& training) {
  for (auto& product : work) std::exchange(product, nullptr)(training);
}

}  // namespace distx::inline DISTX_ABI::pipeline
