// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <memory>

#include "distx/parallel/detail/base/step_faults.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The calls of a training whose order matters; `between_steps` is every call that needs finished weights, but
/// `load`, which replaces them. In the order that `StepState::fault` compares: calls of the backward pass first, those
/// between steps last.
enum class StepCall : std::uint8_t {
  gradient,
  ready,
  unshard,
  micro_batch,
  step,
  reduce_gradients,
  update_weights,
  gather_weights,
  owned,
  between_steps,
  load
};

/// The state machine of a step: gradients are computed, reduced, used for an update, and the weights gathered.
///
/// `fault` says whether a call is legal now; the other functions are the transitions.
class StepState {
 public:
  enum class Phase : std::uint8_t { backward, reduced, updated, released };

  /// @param counted  whether a step without a micro-batch is incomplete
  explicit StepState(bool counted = false) noexcept : counted_(counted), last_(!counted) {}

  /// Returns why `call` is illegal now, or `none`.
  ///
  /// @param reducing  whether a reduction of this step has started
  [[nodiscard]] StepFault fault(StepCall call, bool reducing = false) const noexcept {
    if (const StepFault by_phase = faults[static_cast<std::size_t>(call)][static_cast<std::size_t>(phase_)];
        by_phase != StepFault::none)
      return by_phase;
    if (incomplete_ && call != StepCall::load) return StepFault::incomplete_load;
    if (idle_ && call <= StepCall::micro_batch) return StepFault::no_batch;
    if (call <= StepCall::ready && (*evaluations_ > 0 || swapped_in())) return StepFault::no_gradients_in_scope;
    if (call == StepCall::micro_batch && micro_batches_ > 0 && last_) return StepFault::after_last_micro_batch;
    if ((call == StepCall::step || call == StepCall::reduce_gradients) && !last_) return StepFault::no_last_micro_batch;
    return reducing && call >= StepCall::between_steps ? StepFault::step_in_progress : StepFault::none;
  }

  /// Whether the next micro-batch has this index, and the step this number of them.
  [[nodiscard]] bool expects(std::size_t index, std::size_t count) const noexcept {
    return index == micro_batches_ && (index == 0 || count == count_);
  }
  /// @param count  the number of micro-batches of the step, on ranks that have a batch
  /// @return whether this micro-batch follows another one of the same step
  bool begin_micro_batch(bool last, std::size_t count = 0) noexcept {
    last_ = last;
    count_ = count;
    return micro_batches_++ > 0;
  }
  /// Whether the gradients of this micro-batch complete those of the step.
  [[nodiscard]] bool in_last_micro_batch() const noexcept { return last_; }
  /// Whether this step has micro-batches already.
  [[nodiscard]] bool accumulates() const noexcept { return micro_batches_ > 0; }
  [[nodiscard]] std::size_t micro_batches() const noexcept { return micro_batches_; }

  /// Whether this rank has no batch in this step, and makes no calls but those that end it.
  void set_idle(bool idle) noexcept { idle_ = idle; }
  void reduced() noexcept { phase_ = Phase::reduced; }
  void updated() noexcept { phase_ = Phase::updated; }
  /// This step updates nothing, on any rank.
  void skip() noexcept { skipped_ = true; }
  [[nodiscard]] bool skipped() const noexcept { return skipped_; }
  /// The next step begins.
  void finish() noexcept {
    phase_ = Phase::backward;
    micro_batches_ = 0;
    last_ = !counted_;
    skipped_ = idle_ = false;
  }
  void release() noexcept { phase_ = Phase::released; }
  /// Whether the weights are a part of what was to be loaded.
  void set_incomplete(bool incomplete) noexcept { incomplete_ = incomplete; }

  /// The number of evaluation scopes; a scope may outlive the training.
  [[nodiscard]] const std::shared_ptr<int>& evaluations() const noexcept { return evaluations_; }
  /// Held by each scope of `swap_in`.
  [[nodiscard]] const std::shared_ptr<void>& swap_token() const noexcept { return swap_token_; }
  [[nodiscard]] bool swapped_in() const noexcept { return swap_token_.use_count() > 1; }

 private:
  static constexpr StepFault none = StepFault::none;
  static constexpr StepFault reduced_ = StepFault::gradients_reduced;
  static constexpr StepFault unreduced = StepFault::gradients_not_reduced;
  static constexpr StepFault busy = StepFault::step_in_progress;
  static constexpr StepFault ended = StepFault::released;
  /// The illegal transitions: by call, then by phase.
  static constexpr StepFault faults[][4] = {
      // backward, reduced, updated, released
      {none, reduced_, reduced_, ended},                     // gradient
      {none, reduced_, reduced_, ended},                     // ready
      {none, none, none, ended},                             // unshard
      {none, reduced_, reduced_, ended},                     // micro_batch
      {none, reduced_, reduced_, ended},                     // step
      {none, reduced_, reduced_, ended},                     // reduce_gradients
      {unreduced, none, StepFault::weights_updated, ended},  // update_weights
      {unreduced, none, none, ended},                        // gather_weights
      {unreduced, none, none, ended},                        // owned
      {none, busy, busy, ended},                             // between_steps
      {none, busy, busy, ended},                             // load
  };

  Phase phase_ = Phase::backward;
  std::size_t micro_batches_ = 0;  // that have begun
  std::size_t count_ = 0;          // that the step will have
  bool counted_ = false;
  bool last_ = true;
  bool skipped_ = false;
  bool idle_ = false;
  bool incomplete_ = false;
  std::shared_ptr<int> evaluations_ = std::make_shared<int>(0);
  std::shared_ptr<void> swap_token_ = std::make_shared<char>();
};

}  // namespace distx::inline DISTX_ABI::detail
