// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Why a call is out of order in a training step. Each has one message, thrown as an InvalidState.
enum class StepFault : std::uint8_t {
  none,
  released,
  incomplete_load,
  gradients_reduced,
  gradients_not_reduced,
  weights_updated,
  step_in_progress,
  after_last_micro_batch,
  no_last_micro_batch,
  no_gradients_in_scope,
  average_swapped_in,
  no_batch,
  evaluation_in_uneven_step,
  no_copies,
  gradients_unsaved,
  // About one parameter or unit, whose name precedes the message:
  weights_unsharded,
  weights_encoded,
  not_in_training,
  in_another_training,
  no_memory,
  shards_lost,
  sharded,
  gradient_sent,
  ready_again,
  ready_too_often,
  ready_missing,
  ready_unrequested,
  no_gradient,
  ready_too_seldom,
};

/// The only place of these messages, in the order of StepFault.
inline constexpr std::array<std::string_view, 29> step_fault_messages = {
    "",
    "release() has ended this training; construct a new one from the parameters",
    "a checkpoint was damaged, and is loaded in part; load another one, or construct a new training",
    "the gradients of this step are already reduced; call update_weights and gather_weights, or gather_weights alone, "
    "first",
    "the gradients of this step are not reduced; call reduce_gradients first",
    "the weights of this step are already updated; call gather_weights next",
    "a step is in progress; call this after step or gather_weights, and before the first ready of the next step",
    "the last micro-batch of this step has begun; call step first",
    "this step has had fewer micro-batches than the .count that was passed to micro_batch, or that Reproducible "
    "needs; make the others first",
    "gradients are not available inside the scopes of evaluate() and swap_in(); end the scope first",
    "a moving average is swapped in; end the scope of swap_in first",
    "announce_batch has declared that this rank has no batch in this step; call step next",
    "ranks without a batch take part in this step and cannot evaluate; evaluate after step and before announce_batch",
    "Replicate keeps no copies of this training yet; call recover first, also where there is nothing to recover",
    "this step has gradients already, which are not part of the state; call this after step or gather_weights, and "
    "before the first gradient, ready or micro_batch of the next step",
    "is still unsharded, and its weights would become stale; end the scope of unshard first",
    "is unsharded, and its weights are those that Compress encodes; end the scope of unshard first",
    "is not part of a training; construct a DataParallel with it first",
    "is already in a training; end that one, or list the parameter once",
    "has no memory yet; construct a DataParallel with it first",
    "was held in shards by a training that has ended; call release() before the training ends",
    "is held in shards; read it in the scope of `auto weights = training.unshard(...)`",
    "was declared ready, and its gradient is being reduced; write it before ready, or declare more .uses",
    "is already ready in this step; declare .uses = 2 if two layers share it",
    "has already been ready for all of its .uses in this step",
    "has a gradient that was requested but not declared ready; call ready for it",
    "is ready, but its gradient was not requested in this step, and begins as zeros; call gradient before you write "
    "to it, or set .allow_unused = true if it has none",
    "has no gradient in this step; call ready for it, freeze it with .trainable = false, or set .allow_unused = true",
    "was ready less often than its .uses in this step; call ready for each use, or set .allow_unused = true",
};

/// Returns the message of `fault`, about `subject` where that is not empty.
[[nodiscard]] inline std::string message_of(StepFault fault, std::string_view subject = {}) {
  std::string text;
  if (!subject.empty()) text.append("'").append(subject).append("' ");
  return text.append(step_fault_messages[static_cast<std::size_t>(fault)]);
}

/// Returns the message for a parameter that is not trained, thrown as an InvalidArgument.
[[nodiscard]] inline std::string frozen_message(std::string_view name) {
  return std::string("'").append(name).append("' is frozen and has no gradient; set .trainable = true");
}

}  // namespace distx::inline DISTX_ABI::detail
