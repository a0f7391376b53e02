// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/any_communicator.hpp"
#include "distx/comm/detail/host_values.hpp"
#include "distx/parallel/detail/base/step_faults.hpp"
#include "distx/parallel/parameter_list.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The state of one parameter in a step.
template <MemorySpace Space>
struct ParameterStepState {
  int ready = 0;                       ///< calls of `ready` in this micro-batch
  bool requested = false;              ///< the borrowed gradient was asked for in this step
  typename Space::stream zeroed_on{};  ///< the stream that zeroed it then
  bool used = false;                   ///< had a gradient in an earlier micro-batch of this step
  bool skipped = false;                ///< no rank had a gradient in this step
  std::uint64_t updates = 0;           ///< steps that have updated it
};

/// Tracks which gradients of a step are final, and checks each call about one of them.
template <MemorySpace Space>
class GradientTracker {
 public:
  explicit GradientTracker(std::size_t parameters) : states_(parameters) {}
  [[nodiscard]] ParameterStepState<Space>& operator[](std::size_t index) noexcept { return states_[index]; }
  [[nodiscard]] const ParameterStepState<Space>& operator[](std::size_t index) const noexcept { return states_[index]; }

  /// Counts one use of a gradient.
  /// @return whether it was the last one declared
  /// @throws InvalidArgument if the parameter is not trained; InvalidState if it was ready for all of its uses
  bool ready(std::size_t index, const ParameterEntry<Space>& entry, const ErrorContext& context) {
    check_trained(entry, context);
    const int uses = entry.options.uses;
    if (states_[index].ready == uses)
      throw InvalidState(message_of(uses == 1 ? StepFault::ready_again : StepFault::ready_too_often, entry.name),
                         context);
    return ++states_[index].ready == uses;
  }

  /// @throws InvalidArgument if the parameter is not trained; InvalidState if its gradient is being reduced
  void check_writable(std::size_t index, const ParameterEntry<Space>& entry, const ErrorContext& context) const {
    check_trained(entry, context);
    if (states_[index].ready == entry.options.uses)
      throw InvalidState(message_of(StepFault::gradient_sent, entry.name), context);
  }

  /// @throws InvalidState that names the first parameter whose gradient is missing
  void check_complete(const std::vector<ParameterEntry<Space>>& entries, bool allow_unused,
                      const ErrorContext& context) const {
    for (std::size_t i = 0; i < entries.size(); ++i)
      if (const StepFault fault = missing(entries[i], states_[i], allow_unused); fault != StepFault::none)
        throw InvalidState(message_of(fault, entries[i].name), context);
  }

  /// Returns whether a gradient was requested or is ready in this step.
  [[nodiscard]] bool has_gradients(const std::vector<ParameterEntry<Space>>& entries) const noexcept {
    for (std::size_t i = 0; i < entries.size(); ++i)
      if (states_[i].ready > 0 || states_[i].used || was_requested(entries[i], states_[i])) return true;
    return false;
  }

  /// Finds the parameters without a gradient on any rank. Collective over `comm`.
  void agree_on_unused(AnyCommunicator<Space>& comm, const std::source_location& location) {
    std::vector<std::uint8_t> used(states_.size());
    for (std::size_t i = 0; i < used.size(); ++i) used[i] = states_[i].ready > 0 || states_[i].used ? 1 : 0;
    if (comm.size() > 1) all_reduce_values(comm, Span<std::uint8_t>(used), max, location);
    for (std::size_t i = 0; i < used.size(); ++i) states_[i].skipped = used[i] == 0;
  }

  /// Begins the next micro-batch of the step if `adds`, else the next step.
  /// @param zeros  whether its gradients start from zeros, rather than from those of the micro-batch before
  void restart(bool adds, bool zeros) noexcept {
    for (auto& state : states_) {
      state.used = adds && (state.used || state.ready > 0);
      state.ready = 0;
      state.requested = state.requested && !zeros;
    }
  }

 private:
  static void check_trained(const ParameterEntry<Space>& entry, const ErrorContext& context) {
    if (entry.buffer)
      throw InvalidArgument("'" + entry.name + "' is a buffer and has no gradient; pass trained parameters", context);
    if (!entry.options.trainable) throw InvalidArgument(frozen_message(entry.name), context);
  }
  static bool was_requested(const ParameterEntry<Space>& entry, const ParameterStepState<Space>& state) noexcept {
    return (entry.owned && entry.owned->requested) || state.requested;
  }
  static StepFault missing(const ParameterEntry<Space>& entry, const ParameterStepState<Space>& state,
                           bool allow_unused) noexcept {
    if (!entry.trained() || state.ready == entry.options.uses) return StepFault::none;
    if (state.ready == 0 && !state.used && was_requested(entry, state)) return StepFault::ready_missing;
    if (allow_unused) return StepFault::none;
    return state.ready == 0 ? StepFault::no_gradient : StepFault::ready_too_seldom;
  }

  std::vector<ParameterStepState<Space>> states_;
};

}  // namespace distx::inline DISTX_ABI::detail
