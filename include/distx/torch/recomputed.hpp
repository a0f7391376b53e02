// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <vector>

#include "distx/torch/detail/layer_wrapper.hpp"

namespace distx_torch::inline DISTX_ABI {

namespace detail {

/// A forward pass that a graph refers to.
struct ForwardPass : torch::CustomClassHolder {
  explicit ForwardPass(at::Device device) : random(device) {}
  std::function<at::Tensor(at::TensorList)> run{};
  RandomState random;
};

/// Runs a forward pass without a graph, and again with one in the backward pass.
struct Recompute : torch::autograd::Function<Recompute> {
  /// @param anchor  requires a gradient, so that the result does
  static at::Tensor forward(torch::autograd::AutogradContext* context, const c10::intrusive_ptr<ForwardPass>& pass,
                            const at::Tensor& /*anchor*/, at::TensorList inputs) {
    context->saved_data["pass"] = c10::IValue::make_capsule(pass);
    context->save_for_backward(inputs.vec());
    const at::NoGradGuard no_grad;
    return pass->run(inputs);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto capsule = context->saved_data["pass"].toCapsule();
    const auto& pass = static_cast<const ForwardPass&>(*capsule);
    std::vector<at::Tensor> inputs;
    for (const auto& saved : context->get_saved_variables())
      inputs.push_back(saved.detach().requires_grad_(saved.requires_grad()));
    at::Tensor output;
    {
      const WithRandomState same(pass.random);
      const at::AutoGradMode with_graph(true);
      output = pass.run(inputs);
    }
    torch::autograd::backward({output}, {gradients[0]});
    torch::autograd::variable_list result(2);  // none for the pass and the anchor
    for (const auto& input : inputs) result.push_back(input.grad());
    return result;
  }
};

/// Recomputes a layer's forward pass in its backward pass.
class WithoutActivations {
 protected:
  template <class M>
  bool take_type(M&, std::optional<at::ScalarType>) {
    return false;
  }
  template <class M, class... Inputs>
  at::Tensor around(M& layer, const Inputs&... inputs) {
    static_assert((std::convertible_to<const Inputs&, const at::Tensor&> && ...),
                  "distx_torch::Recomputed: the inputs of the layer's forward must be tensors");
    if (!at::GradMode::is_enabled()) return layer->forward(inputs...);
    const std::vector<at::Tensor> tensors{inputs...};
    at::Device device = at::kCPU;
    for (const auto& input : tensors)
      if (input.defined() && !input.device().is_cpu()) device = input.device();
    const auto pass = c10::make_intrusive<ForwardPass>(device);
    pass->run = [layer](at::TensorList given) mutable {
      return [&]<std::size_t... I>(std::index_sequence<I...>) {
        return at::Tensor(layer->forward(given[I]...));
      }(std::index_sequence_for<Inputs...>());
    };
    return Recompute::apply(pass, at::zeros({}).requires_grad_(), at::TensorList(tensors));
  }
};

}  // namespace detail

/// A layer that keeps its inputs instead of its activations: its backward pass runs its forward pass once more, with
/// the same random numbers, and gives the same bits.
///
/// Memory of activations falls to that of one layer at a time, for one more forward pass of each. Inputs and the output
/// are tensors. A layer that counts its passes, such as a BatchNorm in training, counts twice. Its weights may be
/// Sharded: `Recomputed<Sharded<M>>`.
/// @tparam M  a module holder
template <class M>
class Recomputed : public torch::nn::ModuleHolder<detail::LayerWrapper<M, detail::WithoutActivations>> {
 public:
  using torch::nn::ModuleHolder<detail::LayerWrapper<M, detail::WithoutActivations>>::ModuleHolder;
};

}  // namespace distx_torch::inline DISTX_ABI
