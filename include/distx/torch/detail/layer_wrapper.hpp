// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <torch/nn/module.h>

#include <type_traits>
#include <utility>

#include "distx/core/version.hpp"

namespace distx_torch::inline DISTX_ABI::detail {

/// A module that wraps another one, `layer`, and has no parameters: their names are those without the wrapper.
class WrapperModule {
 protected:
  ~WrapperModule() = default;
};

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

/// @tparam M  a module holder
/// @tparam Around  its `around(layer, inputs…)` calls `layer->forward(inputs…)`
template <class M, class Around>
class LayerHolder : public torch::nn::Module, public WrapperModule, public Around {
 public:
  /// Constructs the layer from the arguments of `M`, or from an `M`.
  template <class... Arguments>
  explicit LayerHolder(Arguments&&... arguments)
      : layer_(register_module("layer", M(std::forward<Arguments>(arguments)...))) {}

  M& operator*() noexcept { return layer_; }
  auto* operator->() noexcept { return layer_.get(); }

 private:
  M layer_;
};

/// Has the signature of the layer's forward, so that torch::nn::Sequential and AnyModule can hold it.
template <class M, class Around, class Forward = typename ForwardOf<typename M::ContainedType>::type>
class LayerWrapper;

template <class M, class Around, class R, class... A>
class LayerWrapper<M, Around, R(A...)> : public LayerHolder<M, Around> {
 public:
  using LayerHolder<M, Around>::LayerHolder;
  R forward(A... inputs) { return this->around(**this, std::forward<A>(inputs)...); }
};
/// For a forward that is a template or overloaded.
template <class M, class Around>
class LayerWrapper<M, Around, void> : public LayerHolder<M, Around> {
 public:
  using LayerHolder<M, Around>::LayerHolder;
  template <class... Inputs>
  auto forward(Inputs&&... inputs) {
    return this->around(**this, std::forward<Inputs>(inputs)...);
  }
};

}  // namespace distx_torch::inline DISTX_ABI::detail
