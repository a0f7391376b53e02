// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/layers/tensor_parallel.hpp"
#include "distx/tensor/ops/layer_norm.hpp"

namespace distx {

/// The layer norm of the stream, each token's on the ranks that have it.
///
/// Where tokens are shared out over the model axis, so are the terms of its gradients: they are Partial over that axis,
/// and `ready` adds them up.
template <class T, class Split>
class StreamNorm {
 public:
  StreamNorm(const std::string& name, const typename Split::mesh& mesh, std::size_t width)
      : scale_(name + ".scale", mesh, {width}, detail::one_at, detail::undecayed),
        shift_(name + ".shift", mesh, {width}, detail::zero_at, detail::undecayed) {}

  template <class F>
  void for_each_parameter(F&& f) const {
    f(scale_);
    f(shift_);
  }

  template <class X, class Training>
  [[nodiscard]] auto forward(const X& x, Training& training) {
    const auto weights = training.unshard(scale_, shift_);
    input_.emplace(x.clone());
    return layer_norm(x, scale_, shift_);
  }
  template <class G, class Training>
  [[nodiscard]] auto backward(const G& gradient, Training& training) {
    const auto weights = training.unshard(scale_, shift_);
    auto gradients = layer_norm_backward(detail::taken(input_, "StreamNorm"), scale_, gradient);
    training.ready(scale_, gradients.weight);
    training.ready(shift_, gradients.bias);
    return std::move(gradients.input);
  }

 private:
  typename Split::template weight<T, 1> scale_;
  typename Split::template weight<T, 1> shift_;
  std::optional<typename Split::template tensor<T, 3, typename Split::stream>> input_;
};

}  // namespace distx
