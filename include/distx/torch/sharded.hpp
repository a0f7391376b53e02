// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <tuple>
#include <type_traits>
#include <utility>

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

/// The signature R(A…) of a module's forward; void if it is a template or overloaded.
template <class Module>
struct ForwardOf {
  using type = void;
};
template <class Module>
  requires requires { &Module::forward; }
struct ForwardOf<Module> {
  template <class R, class Class, class... A>
  static auto find(R (Class::*)(A...)) -> std::type_identity<R(A...)>;
  using type = typename decltype(find(&Module::forward))::type;
};

template <class M>
class ShardedLayer : public torch::nn::Module, public ShardedModule {
 public:
  /// Constructs the layer from the arguments of `M`, or from an `M`.
  template <class... Arguments>
  explicit ShardedLayer(Arguments&&... arguments)
      : layer_(register_module("layer", M(std::forward<Arguments>(arguments)...))) {}

  M& operator*() noexcept { return layer_; }
  auto* operator->() noexcept { return layer_.get(); }

 protected:
  template <class... Inputs>
  auto run(Inputs&&... inputs) {
    const auto whole = weights()->open();
    auto output = layer_->forward(std::forward<Inputs>(inputs)...);
    for_each_tensor(output, [&](const at::Tensor& tensor) {
      if (tensor.requires_grad())
        tensor.register_hook([layer = weights()](const at::Tensor&) { layer->begin_backward(); });
    });
    return output;
  }

 private:
  M layer_;
};

}  // namespace detail

/// A layer whose weights are whole on this rank only while its forward and backward pass run, at stage 3 of a
/// DataParallel; elsewhere it is `M`.
///
/// C++ modules have no forward hooks, so a layer is wrapped where the model is written. In checkpoints and
/// errors its parameters have the names that they would have without the wrapper; below the module itself they are in
/// `layer`. Weights are gathered in the order of the passes, which is the same on every rank.
/// @tparam M  a module holder, such as torch::nn::Linear
/// @code
/// hidden = register_module("hidden", distx_torch::Sharded<torch::nn::Linear>(784, 1024));
/// x = hidden->forward(x);
/// @endcode
template <class M, class Forward = typename detail::ForwardOf<typename M::ContainedType>::type>
class ShardedImpl;

/// Has the signature of M's forward, so that torch::nn::Sequential and AnyModule can hold it.
template <class M, class R, class... A>
class ShardedImpl<M, R(A...)> : public detail::ShardedLayer<M> {
 public:
  using detail::ShardedLayer<M>::ShardedLayer;
  R forward(A... inputs) { return this->run(std::forward<A>(inputs)...); }
};
/// For an M whose forward is a template or overloaded.
template <class M>
class ShardedImpl<M, void> : public detail::ShardedLayer<M> {
 public:
  using detail::ShardedLayer<M>::ShardedLayer;
  template <class... Inputs>
  auto forward(Inputs&&... inputs) {
    return this->run(std::forward<Inputs>(inputs)...);
  }
};

template <class M>
class Sharded : public torch::nn::ModuleHolder<ShardedImpl<M>> {
 public:
  using torch::nn::ModuleHolder<ShardedImpl<M>>::ModuleHolder;
};

}  // namespace distx_torch::inline DISTX_ABI
