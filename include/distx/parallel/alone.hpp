// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <vector>

#include "distx/memory/buffer.hpp"
#include "distx/parallel/parameter_list.hpp"

namespace distx {

/// Stands in for a training where there is none: a model written for DataParallel runs forward and backward with it.
///
/// It gives Parameters that are in no training memory of their own, with their first values, and takes part in nothing:
/// `ready` and the scopes do nothing. `begin_step` makes the next gradients begin with zeros again. Move-only.
template <MemorySpace Space = Host>
class Alone {
 public:
  using space = Space;
  using stream = typename Space::stream;
  struct [[nodiscard]] scope {
    ~scope() {}  // NOLINT: as a scope has, so that nobody is warned of an unused variable
  };

  /// Its list has to be named where parameters are owned; borrowed ones have their memory.
  explicit Alone(const ParameterList<Space>& parameters = {}) {
    const ErrorContext context{.operation = "Alone"};
    detail::check_list(parameters.entries(), context);
    for (const auto& entry : parameters.entries()) {
      if (!entry.owned) continue;
      auto& state = *entry.owned;
      if (state.value.empty()) {
        const auto values = memory_for(state, state.value_memory);
        state.initialize(values);
        state.value = values;
      }
      if (entry.trained()) state.gradient = memory_for(state, state.gradient_memory);
      state.in_training = true;
      state.touched = state.sent = false;
      states_.push_back(entry.owned);
    }
  }
  Alone(Alone&&) noexcept = default;
  Alone& operator=(Alone&&) = delete;
  ~Alone() {
    for (const auto& state : states_) {
      state->in_training = false;
      state->gradient = {};
      state->gradient_memory = nullptr;
    }
  }

  template <FloatingElement T>
  [[nodiscard]] Span<T, Space> value(const Parameter<T, Space>& parameter) const {
    return parameter.value();
  }
  template <FloatingElement T>
  [[nodiscard]] Span<T, Space> value(const ParameterRef<T, Space>& parameter) const {
    return parameter.weight;
  }
  template <FloatingElement T>
  [[nodiscard]] Span<T, Space> gradient(const Parameter<T, Space>& parameter, stream after = {}) {
    return parameter.gradient(after);
  }
  /// The user's array as it is: zeros are up to the user here.
  template <FloatingElement T>
  [[nodiscard]] Span<T, Space> gradient(const ParameterRef<T, Space>& parameter, stream = {}) {
    return parameter.gradient;
  }
  template <class... Parameters>
  [[nodiscard]] scope unshard(const Parameters&...) const noexcept {
    return {};
  }
  [[nodiscard]] scope evaluate() const noexcept { return {}; }
  [[nodiscard]] scope micro_batch(bool) const noexcept { return {}; }
  template <class... Ready>
  void ready(const Ready&...) const noexcept {}
  template <class... Ready>
  void ready_after(stream, const Ready&...) const noexcept {}

  /// The next gradient of every Parameter begins with zeros.
  void begin_step() noexcept {
    for (const auto& state : states_) state->touched = false;
  }

 private:
  static Span<AnyElement, Space> memory_for(const detail::ParameterState<Space>& state, std::shared_ptr<void>& owner) {
    const auto buffer = std::make_shared<Buffer<std::byte, Space>>(state.size * state.element_bytes);
    owner = buffer;
    return {buffer->data(), state.size, state.type, state.element_bytes};
  }

  std::vector<std::shared_ptr<detail::ParameterState<Space>>> states_;
};

}  // namespace distx
