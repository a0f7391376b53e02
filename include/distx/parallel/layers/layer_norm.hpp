// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/layers/tensor_parallel.hpp"
#include "distx/tensor/ops/layer_norm.hpp"

namespace distx::inline DISTX_ABI::layers {

/// The layer norm of the residual stream, over the last dimension of (batch, length, width). Local.
///
/// With sequence parallelism the gradients of its weights are Partial over the model axis, and `ready` reduces them.
/// @tparam T  the element type
/// @tparam Split  a TensorParallel
template <class T, class Split>
class ParallelLayerNorm {
 public:
  /// Constructs a layer norm whose scale is ones and whose shift is zeros at first.
  /// @param epsilon  is added to the variance
  ParallelLayerNorm(const std::string& name, const typename Split::mesh& mesh, std::size_t width,
                    double epsilon = detail::layer_norm_epsilon)
      : epsilon_(epsilon),
        scale_(name + ".scale", mesh, {width}, detail::one_at, detail::undecayed),
        shift_(name + ".shift", mesh, {width}, detail::zero_at, detail::undecayed) {}

  /// Calls f(parameter) for every TensorParameter.
  template <class F>
  void for_each_parameter(F&& f) const {
    f(scale_);
    f(shift_);
  }

  /// Returns the normalized `x`; `backward` takes the same `x` again.
  template <class X, class Training>
  [[nodiscard]] auto forward(const X& x, Training& training) const {
    const auto weights = training.unshard(scale_, shift_);
    return ops::layer_norm(x, detail::computed(scale_), detail::computed(shift_), epsilon_);
  }
  /// Returns the gradient of `x`, and declares the weights' gradients ready.
  template <class X, class G, class Training>
  [[nodiscard]] auto backward(const X& x, const G& gradient, Training& training) const {
    const auto weights = training.unshard(scale_, shift_);
    auto gradients = ops::layer_norm_backward(x, detail::computed(scale_), gradient, epsilon_);
    training.ready(scale_, gradients.weight);
    training.ready(shift_, gradients.bias);
    return std::move(gradients.input);
  }

 private:
  double epsilon_;
  typename Split::template weight<T, 1> scale_;
  typename Split::template weight<T, 1> shift_;
};

}  // namespace distx::inline DISTX_ABI::layers
