// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <ATen/Context.h>
#include <torch/nn/module.h>

#include <concepts>
#include <functional>
#include <mutex>
#include <optional>
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

/// The random states of the generators that initial values and dropout use: the host's, and the one of a GPU.
struct RandomState {
  explicit RandomState(at::Device where = at::kCPU) : device(where) {
    const auto read = [](at::Device of) {
      at::Generator generator = at::globalContext().defaultGenerator(of);
      const std::lock_guard lock(generator.mutex());
      return generator.get_state();
    };
    host = read(at::kCPU);
    if (!device.is_cpu()) on_device = read(device);
  }
  void set() const {
    const auto write = [](at::Device of, const at::Tensor& state) {
      at::Generator generator = at::globalContext().defaultGenerator(of);
      const std::lock_guard lock(generator.mutex());
      generator.set_state(state);
    };
    write(at::kCPU, host);
    if (!device.is_cpu()) write(device, on_device);
  }
  at::Device device;
  at::Tensor host{}, on_device{};
};
/// Sets random states until its scope ends.
class WithRandomState {
 public:
  explicit WithRandomState(const RandomState& state) : before_(state.device) { state.set(); }
  WithRandomState(const WithRandomState&) = delete;
  WithRandomState& operator=(const WithRandomState&) = delete;
  ~WithRandomState() { before_.set(); }

 private:
  RandomState before_;
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

/// Whether a constructor's arguments begin with one of these.
template <class... Arguments>
inline constexpr bool defers = false;
template <class First, class... Rest>
inline constexpr bool defers<First, Rest...> =
    std::same_as<std::remove_cvref_t<First>, Deferred> || std::same_as<std::remove_cvref_t<First>, RandomState>;

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
  explicit LayerHolder(const Deferred&, const Arguments&... arguments) : LayerHolder(RandomState(), arguments...) {}

  M& operator*() noexcept { return layer_; }
  auto* operator->() noexcept { return layer_.get(); }

  // A deferred layer has no values that could be converted.
  void to(at::Device device, at::ScalarType type, bool non_blocking = false) override {
    if (!this->take_type(layer_, type)) Module::to(device, type, non_blocking);
  }
  void to(at::ScalarType type, bool non_blocking = false) override {
    if (!this->take_type(layer_, type)) Module::to(type, non_blocking);
  }
  void to(at::Device device, bool non_blocking = false) override {
    if (!this->take_type(layer_, std::nullopt)) Module::to(device, non_blocking);
  }

 private:
  template <class... Arguments>
  LayerHolder(const RandomState& random, const Arguments&... arguments)
      : layer_(register_module("layer", M(arguments...))) {
    this->defer(layer_, random, std::function<M()>([arguments...] { return M(arguments...); }));
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
