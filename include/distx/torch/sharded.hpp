// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <torch/nn/pimpl.h>

#include <tuple>

#include "distx/torch/detail/layer_wrapper.hpp"
#include "distx/torch/detail/module_parameters.hpp"

namespace distx_torch::inline DISTX_ABI {

namespace detail {

/// Calls f(tensor) for each tensor of what a layer returns: a tensor, or a tuple or vector of these.
template <class Output, class F>
void for_each_tensor(const Output& output, F&& f) {
  if constexpr (std::convertible_to<const Output&, const at::Tensor&>)
    f(static_cast<const at::Tensor&>(output));
  else if constexpr (requires { std::tuple_size<Output>::value; })
    std::apply([&](const auto&... each) { (for_each_tensor(each, f), ...); }, output);
  else if constexpr (requires { output.begin(); })
    for (const auto& each : output) for_each_tensor(each, f);
}

/// Makes a layer's weights whole around its passes.
class WithWholeWeights : public ShardedModule {
 protected:
  /// Frees the memory of a layer's weights until a training makes it once more, with the same random numbers.
  template <class M>
  void defer(M& layer, const RandomState& random, std::function<M()> make) {
    withhold_all(layer);
    weights()->remake = [random, make = std::move(make)]() -> std::shared_ptr<torch::nn::Module> {
      const WithRandomState same(random);
      return make().ptr();
    };
  }
  /// Gives the tensors of a deferred layer a type; its training moves them. Returns whether the layer is deferred.
  template <class M>
  bool take_type(M& layer, std::optional<at::ScalarType> type) {
    if (!weights()->remake) return false;
    if (!type) return true;
    for (const auto& each : layer->parameters()) each.set_data(at::empty_like(each, each.options().dtype(*type)));
    withhold_all(layer);
    for (const auto& each : layer->buffers()) each.set_data(each.to(*type));
    return true;
  }
  template <class M, class... Inputs>
  auto around(M& layer, Inputs&&... inputs) {
    const auto whole = weights()->open();
    auto output = layer->forward(std::forward<Inputs>(inputs)...);
    for_each_tensor(output, [&](const at::Tensor& tensor) {
      if (tensor.requires_grad()) tensor.register_hook([of = weights()](const at::Tensor&) { of->begin_backward(); });
    });
    return output;
  }

 private:
  template <class M>
  static void withhold_all(M& layer) {
    for (const auto& item : layer->named_parameters())
      withhold(item.value(),
               "'" + item.key() + "' of a deferred layer has no values before a DataParallel of its module is made");
  }
};

}  // namespace detail

/// A layer whose weights are whole on this rank only while its forward and backward pass run, at stage 3 of a
/// DataParallel; elsewhere it is `M`.
///
/// C++ modules have no forward hooks, so a layer is wrapped where the model is written. In checkpoints and errors its
/// parameters have the names that they would have without the wrapper; below the module itself they are in `layer`.
/// Weights are gathered in the order of the passes, which is the same on every rank.
/// `Sharded<M>(distx_torch::deferred, …)` frees the layer's weights at once, and makes them, with the same values, when
/// the training is constructed: so the model is never whole, and needs memory for one layer in addition to the shards.
/// The arguments are copied.
/// @tparam M  a module holder, such as torch::nn::Linear
/// @code
/// hidden = register_module("hidden", distx_torch::Sharded<torch::nn::Linear>(784, 1024));
/// x = hidden->forward(x);
/// @endcode
template <class M>
class Sharded : public torch::nn::ModuleHolder<detail::LayerWrapper<M, detail::WithWholeWeights>> {
 public:
  using torch::nn::ModuleHolder<detail::LayerWrapper<M, detail::WithWholeWeights>>::ModuleHolder;
};

}  // namespace distx_torch::inline DISTX_ABI
