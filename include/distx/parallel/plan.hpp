// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "distx/core/error.hpp"
#include "distx/optim/adamw.hpp"

namespace distx::inline DISTX_ABI {

/// Bytes that training holds for each parameter, by kind.
struct BytesPerParameter {
  std::uint32_t weights = 0;
  std::uint32_t gradients = 0;
  std::uint32_t optimizer = 0;
};

/// Weights, gradients and optimizer states in float32. For a Mixed optimizer this is an upper bound; add the plans of
/// its two kinds of parameters for the exact figure.
template <class Optimizer = AdamW>
inline constexpr BytesPerParameter full_precision{4, 4, 4 * Optimizer::states};

/// Weights and gradients of 2 bytes, float32 master weights and optimizer states.
template <class Optimizer = AdamW>
inline constexpr BytesPerParameter mixed_precision{2, 2, 4 + 4 * Optimizer::states};

/// The bytes that training holds and sends by the formula, on the rank that has most.
///
/// Padding, activations, and buckets and gathered weights in flight are not counted. Parameters that are assigned whole
/// may give a rank up to one parameter more than its share.
struct TrainingPlan {
  std::uint64_t weights = 0;
  std::uint64_t gradients = 0;
  std::uint64_t optimizer = 0;
  std::uint64_t sent = 0;       ///< in each step, by bandwidth-optimal collectives
  std::uint64_t replicas = 0;   ///< copies of weights and optimizer states, with the policy Replicate
  std::uint64_t offloaded = 0;  ///< optimizer states and master weights in files, or of GPUs in host memory

  /// Returns the bytes held in the training's memory: all but the offloaded ones.
  [[nodiscard]] std::uint64_t total() const noexcept { return weights + gradients + optimizer + replicas; }
  /// Returns the plan of two sets of parameters together.
  friend TrainingPlan operator+(const TrainingPlan& a, const TrainingPlan& b) noexcept {
    return {a.weights + b.weights, a.gradients + b.gradients, a.optimizer + b.optimizer,
            a.sent + b.sent,       a.replicas + b.replicas,   a.offloaded + b.offloaded};
  }
};

/// Options of a training by which its bytes depend on more than its stage.
struct PlanOptions {
  /// Whether it has the policy Replicate, which keeps three shards of weights and optimizer states (at stage 0 or on
  /// one rank, one copy) and sends one.
  bool replicate = false;
  /// Whether the ranks share memory and the training maps weights (`.map_weights`), which counts at stage 3; it then
  /// has no gathered weights in flight either.
  bool map_weights = false;
  /// Whether the ranks share memory and one copy of the weights (`.share_weights`), which counts at stages 0 to 2;
  /// stage 0 is then as stage 1.
  bool share_weights = false;
  /// The bytes in which gradients are sent, such as 2 with Compress<bfloat16>; 0 if they are sent as they are held.
  std::uint32_t sent_gradient_bytes = 0;
  /// Whether optimizer states and master weights are in files (`.state_folder`), or in host memory while a GPU trains
  /// (`.offload`).
  bool offload = false;
};

/// Returns the bytes that one stage of ZeRO holds and sends (arXiv 1910.02054, section 5); allocates nothing.
///
/// Stage 1 shards the optimizer's states, 2 also the gradients, 3 also the weights. A step sends (ranks - 1) / ranks of
/// the gradients and of the weights; at stage 0, of the gradients twice; at stage 3, of the weights twice, for the
/// forward and the backward pass, or, if they are mapped, not at all. Shared weights are not sent either.
/// @param parameters  the number of parameters; >= 1
/// @param ranks  >= 1
/// @param stage  0 to 3
/// @throws InvalidArgument for a value out of range, or for bytes that 64 bits cannot count
[[nodiscard]] inline TrainingPlan plan(std::uint64_t parameters, std::uint64_t ranks, int stage,
                                       const BytesPerParameter& bytes = full_precision<>,
                                       const PlanOptions& options = {}) {
  const auto fail = [](const std::string& message) { throw InvalidArgument(message, {.operation = "plan"}); };
  const std::uint64_t most =
      std::numeric_limits<std::uint64_t>::max() / (options.replicate ? 8 : 2) /
      (std::uint64_t{1} + bytes.weights + bytes.gradients + bytes.optimizer + options.sent_gradient_bytes);
  if (parameters == 0 || parameters > most)
    fail("invalid number of parameters " + std::to_string(parameters) + ": must be in [1, " + std::to_string(most) +
         "]");
  if (ranks == 0) fail("invalid number of ranks 0: must be >= 1");
  if (stage < 0 || stage > 3) fail("invalid stage " + std::to_string(stage) + ": must be 0, 1, 2 or 3");
  if (options.share_weights && stage == 0) stage = 1;
  const std::uint64_t shard = parameters / ranks + (parameters % ranks != 0 ? 1 : 0);
  const std::uint64_t foreign = parameters - parameters / ranks;
  const auto held = [&](int sharded_from) { return stage >= sharded_from ? shard : parameters; };
  const std::uint64_t gradient_bytes = options.sent_gradient_bytes == 0 ? bytes.gradients : options.sent_gradient_bytes;
  const std::uint64_t gradients_sent = stage == 0 ? 2 : 1;
  const bool one_copy = stage == 3 ? options.map_weights : options.share_weights;
  const std::uint64_t weights_sent = stage == 0 || one_copy ? 0 : stage < 3 ? 1 : 2;
  TrainingPlan plan{bytes.weights * held(options.share_weights ? 0 : 3), bytes.gradients * held(2),
                    bytes.optimizer * held(1),
                    foreign * (gradient_bytes * gradients_sent + bytes.weights * weights_sent)};
  if (options.replicate) {
    const bool whole = stage == 0 || ranks == 1;
    const std::uint64_t copied = (std::uint64_t{bytes.weights} + bytes.optimizer) * (whole ? parameters : shard);
    plan.replicas = whole ? copied : 3 * copied;
    if (!whole) plan.sent += copied;
  }
  if (options.offload) plan.offloaded = std::exchange(plan.optimizer, 0);
  return plan;
}

}  // namespace distx::inline DISTX_ABI
