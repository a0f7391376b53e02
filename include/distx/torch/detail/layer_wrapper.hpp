// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/module.h>

#include <concepts>
#include <functional>
#include <mutex>
#include <type_traits>
#include <utility>

#include "distx/core/version.hpp"

namespace distx_torch::inline DISTX_ABI {

/// The type of `deferred`.
struct Deferred {};
/// Makes a Sharded layer without memory for its weights until a training is made of it.
inline constexpr Deferred deferred{};

namespace detail {

/// A module that wraps another one, `layer`, and has no parameters: their names are those without the wrapper.
class WrapperModule {
 protected:
  ~WrapperModule() = default;
};

/// The random state of the host's generator, which initial values and dropout use.
[[nodiscard]] inline at::Tensor random_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}
/// Sets the random state until its scope ends.
class WithRandomState {
 public:
  explicit WithRandomState(const at::Tensor& state) : before_(random_state()) { set(state); }
  WithRandomState(const WithRandomState&) = delete;
  WithRandomState& operator=(const WithRandomState&) = delete;
  ~WithRandomState() { set(before_); }

 private:
  static void set(const at::Tensor& state) {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
  at::Tensor before_;
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

/// The random state before a deferred layer is constructed.
struct RandomBefore {
  at::Tensor state = random_state();
};
/// Whether a constructor's arguments begin with one of these.
template <class... Arguments>
inline constexpr bool defers = false;
template <class First, class... Rest>
inline constexpr bool defers<First, Rest...> =
    std::same_as<std::remove_cvref_t<First>, Deferred> || std::same_as<std::remove_cvref_t<First>, RandomBefore>;

/// @tparam M  a module holder
/// @tparam Around  its `around(layer, inputs…)` calls `layer->forward(inputs…)`
template <class M, class Around>
class LayerHolder : public torch::nn::Module, public WrapperModule, public Around {
 public:
  /// Constructs the layer from the arguments of `M`, or from an `M`.
  template <class... Arguments>
    requires(!defers<Arguments...>)
  explicit LayerHolder(Arguments&&... arguments)
      : layer_(register_module("layer", M(std::forward<Arguments>(arguments)...))) {}
  /// Constructs a Sharded layer whose weights have no memory yet.
  template <class... Arguments>
  explicit LayerHolder(const Deferred&, const Arguments&... arguments) : LayerHolder(RandomBefore(), arguments...) {}

  M& operator*() noexcept { return layer_; }
  auto* operator->() noexcept { return layer_.get(); }

 private:
  template <class... Arguments>
  LayerHolder(const RandomBefore& random, const Arguments&... arguments)
      : layer_(register_module("layer", M(arguments...))) {
    this->defer(layer_, random.state, std::function<M()>([arguments...] { return M(arguments...); }));
  }

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

}  // namespace detail

}  // namespace distx_torch::inline DISTX_ABI
