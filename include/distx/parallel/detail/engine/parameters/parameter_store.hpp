// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <unordered_map>

#include "distx/parallel/detail/base/training_policies.hpp"
#include "distx/parallel/detail/engine/parameters/gradient_tracker.hpp"

namespace distx::inline DISTX_ABI::detail {

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
