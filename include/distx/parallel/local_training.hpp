// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/memory/buffer.hpp"
#include "distx/parallel/training_methods.hpp"

namespace distx::inline DISTX_ABI {

/// Runs a model that is written for DataParallel forward and backward in one process, without a communicator.
///
/// It gives Parameters that have no memory their own, with their first values, and communicates nothing: `ready` and
/// the scopes do nothing, and nothing is updated. `begin_step` makes the next gradients start from zeros. Move-only.
template <MemorySpace Space = Host>
class LocalTraining : private TrainingMethods<true, On<Space>> {
  using Methods = TrainingMethods<true, On<Space>>;

 public:
  using typename Methods::scope;
  using typename Methods::space;
  using typename Methods::stream;

  /// @param parameters  the owned parameters; borrowed ones have their memory and may be left out
  /// @throws InvalidArgument or InvalidState as the constructor of DataParallel
  explicit LocalTraining(const ParameterList<Space>& parameters = {}) {
    const ErrorContext context{.operation = "LocalTraining"};
    const auto& entries = detail::ParameterListAccess::entries(parameters);
    detail::check_list(entries, context);
    for (const auto& entry : entries) {
      if (!entry.owned) continue;
      auto& state = *entry.owned;
      if (state.value.empty()) {
        const auto values = memory_for(state, state.value_memory);
        state.initialize(values);
        state.place(values);
      }
      if (entry.trained()) state.gradient = memory_for(state, state.gradient_memory);
      state.in_training = true;
      state.requested = state.sent = false;
      states_.push_back(entry.owned);
    }
  }
  LocalTraining(LocalTraining&&) noexcept = default;
  LocalTraining& operator=(LocalTraining&&) = delete;
  ~LocalTraining() {
    for (const auto& state : states_) {
      state->in_training = false;
      state->gradient = {};
      state->gradient_memory = nullptr;
    }
  }

  /// @name DataParallel's
  /// `gradient` returns a borrowed array as it is: the user zeroes it. The others but `value` have no effect.
  /// @{
  using Methods::add_gradient;
  using Methods::announce_batch;
  using Methods::count_activations;
  using Methods::evaluate;
  using Methods::gradient;
  using Methods::micro_batch;
  using Methods::ready;
  using Methods::ready_after;
  using Methods::unshard;
  using Methods::unshard_after;
  using Methods::value;
  /// @}

  /// Makes the next gradient of every Parameter start from zeros.
  void begin_step() noexcept {
    for (const auto& state : states_) state->requested = false;
  }

 private:
  static Span<AnyElement, Space> memory_for(const detail::ParameterState<Space>& state, std::shared_ptr<void>& owner) {
    const auto buffer = std::make_shared<Buffer<std::byte, Space>>(state.size * state.element_bytes);
    owner = buffer;
    return {buffer->data(), state.size, state.type, state.element_bytes};
  }

  std::vector<std::shared_ptr<detail::ParameterState<Space>>> states_;
};

}  // namespace distx::inline DISTX_ABI
