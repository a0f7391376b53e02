// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <unordered_map>

#include "distx/comm/any_communicator.hpp"
#include "distx/comm/detail/host_values.hpp"
#include "distx/parallel/detail/base/step_faults.hpp"
#include "distx/parallel/detail/base/training_policies.hpp"
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
  /// @param zeros  whether its gradients start from zeros, rather than from those of the micro-batch before; true for a
  ///   next step
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

/// The parameters and buffers of one training, and what the current step knows of each.
///
/// Owned parameters belong to the training from `claim` to `release`, or to the end of this object.
template <MemorySpace Space>
class ParameterStore {
 public:
  using Entry = ParameterEntry<Space>;
  using stream = typename Space::stream;

  explicit ParameterStore(std::vector<Entry> entries) : entries_(std::move(entries)), steps_(entries_.size()) {
    for (std::size_t i = 0; i < entries_.size(); ++i)
      indices_.emplace(entries_[i].owned ? static_cast<const void*>(entries_[i].owned.get()) : entries_[i].value.data(),
                       i);
  }
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;
  ~ParameterStore() { release(); }

  [[nodiscard]] const std::vector<Entry>& entries() const noexcept { return entries_; }
  [[nodiscard]] const Entry& operator[](std::size_t index) const noexcept { return entries_[index]; }
  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
  [[nodiscard]] GradientTracker<Space>& steps() noexcept { return steps_; }
  [[nodiscard]] const GradientTracker<Space>& steps() const noexcept { return steps_; }

  /// Returns the index of a parameter, known by its state or, if it is borrowed, by the address of its weights.
  /// @throws InvalidArgument if there is none
  [[nodiscard]] std::size_t index_of(const void* identity, const ErrorContext& context) const {
    if (const auto found = indices_.find(identity); found != indices_.end()) return found->second;
    throw InvalidArgument(
        "not one of the training's parameters; pass the weights or Parameters that it was constructed with, which must "
        "not move in memory",
        context);
  }

  /// Whether losses are scaled: for trained parameters of float16 with master weights.
  [[nodiscard]] bool scales_loss(const TrainingPolicies& policies) const {
    return policies.communication_type && std::any_of(entries_.begin(), entries_.end(), [](const Entry& entry) {
             return entry.trained() && entry.type() == ElementType::f16;
           });
  }
  /// Zeroes the gradient of a trained parameter if it was not ready in this micro-batch, before it is reduced.
  void zero_unused(std::size_t i, const TrainingPolicies& policies, int ranks, stream after) const {
    const Entry& entry = entries_[i];
    if (!entry.trained() || steps_[i].ready > 0) return;
    if (steps_[i].used && policies.accumulation == Accumulation::local) return;  // of an earlier micro-batch
    if (entry.owned)
      entry.owned->prepare_gradient(after);
    else if (ranks > 1 || policies.begins_as_zeros())
      fill(after, Span<std::byte, Space>(entry.gradient.bytes(), entry.gradient.size_bytes()), std::byte{0});
  }

  /// Marks owned parameters as in training; `open(index, stream)` gives a gradient memory when it is first asked for,
  /// and returns whether it has zeroed it.
  template <class Open>
  void claim(bool opens, Open&& open) {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (!entries_[i].owned) continue;
      auto& state = *entries_[i].owned;
      state.in_training = true;
      state.initialize = nullptr;  // its captures may be large
      state.requested = state.sent = false;
      state.ended = nullptr;
      if (entries_[i].trained() && opens) state.open_gradient = [open, i](stream after) { return open(i, after); };
    }
    claimed_ = true;
  }
  /// Makes requests for gradients of owned parameters throw, because an error has ended the training.
  void end(const std::shared_ptr<const TrainingEnd>& error) noexcept {
    if (!claimed_) return;
    for (const auto& entry : entries_)
      if (entry.owned) entry.owned->ended = error;
  }
  /// Ends the training of owned parameters: they keep whole weights and may be in another training.
  void release() noexcept {
    if (!std::exchange(claimed_, false)) return;
    for (auto& entry : entries_) {
      if (!entry.owned) continue;
      auto& state = *entry.owned;
      state.in_training = false;
      state.open_gradient = nullptr;
      state.gradient = {};
      if (std::exchange(state.sharded, false)) {
        state.place({});
        state.lost = true;
      }
    }
  }

  /// Begins the next micro-batch of the step if `adds`, else the next step.
  /// @param zeros  whether its gradients start from zeros
  void restart(bool adds, bool zeros) noexcept {
    steps_.restart(adds, zeros);
    for (const auto& entry : entries_) {
      if (!entry.owned) continue;
      entry.owned->sent = false;
      if (zeros) entry.owned->requested = false;
    }
  }

 private:
  std::vector<Entry> entries_;
  GradientTracker<Space> steps_;
  std::unordered_map<const void*, std::size_t> indices_;
  bool claimed_ = false;
};

}  // namespace distx::inline DISTX_ABI::detail
