// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdint>
#include <limits>
#include <string>

#include "distx/core/error.hpp"
#include "distx/optim/adamw.hpp"

namespace distx {

/// Bytes that training keeps of each parameter, by kind.
struct BytesPerParameter {
  std::uint32_t weights = 0;
  std::uint32_t gradients = 0;
  std::uint32_t optimizer = 0;
};

/// All in float32. Of a Mixed optimizer: at the most; to be exact, plan its two kinds of parameters apart and add.
template <class Optimizer = AdamW>
inline constexpr BytesPerParameter full_precision{4, 4, 4 * Optimizer::states};

/// Weights and gradients of 2 bytes; the optimizer keeps float32 weights beside its states.
template <class Optimizer = AdamW>
inline constexpr BytesPerParameter mixed_precision{2, 2, 4 + 4 * Optimizer::states};

/// What training takes, by the formula: bytes on the rank that has most, without padding, activations, and buckets and
/// gathered weights in flight. Parameters that are dealt out whole may give a rank one of them more than its share.
struct TrainingPlan {
  std::uint64_t weights = 0;
  std::uint64_t gradients = 0;
  std::uint64_t optimizer = 0;
  std::uint64_t sent = 0;  ///< in each step, by collectives that send no more than they must

  [[nodiscard]] std::uint64_t total() const noexcept { return weights + gradients + optimizer; }
  /// Of both kinds of parameters together.
  friend TrainingPlan operator+(const TrainingPlan& a, const TrainingPlan& b) noexcept {
    return {a.weights + b.weights, a.gradients + b.gradients, a.optimizer + b.optimizer, a.sent + b.sent};
  }
};

/// The plan of one stage of ZeRO (arXiv 1910.02054, section 5): 1 shards the optimizer's states, 2 the gradients too, 3
/// the weights too. Nothing is allocated.
///
/// A step sends the gradients once and the weights once, at stage 0 the gradients twice, and at stage 3 the weights
/// twice, for the forward and the backward pass; of each, what belongs to others: (ranks - 1) / ranks.
/// @throws Error for no parameters or more than 64 bits can count in bytes, no ranks, another stage
[[nodiscard]] inline TrainingPlan plan(std::uint64_t parameters, std::uint64_t ranks, int stage,
                                       const BytesPerParameter& bytes = full_precision<>) {
  const auto fail = [](const std::string& words) { throw Error(words, {.operation = "plan"}); };
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max() / 2 /
                             (std::uint64_t{1} + bytes.weights + bytes.gradients + bytes.optimizer);
  if (parameters == 0 || parameters > most)
    fail(std::to_string(parameters) + " parameters: it must be 1 to " + std::to_string(most));
  if (ranks == 0) fail("0 ranks: it must be 1 or more");
  if (stage < 0 || stage > 3) fail("stage " + std::to_string(stage) + ": it must be 0, 1, 2 or 3");
  const std::uint64_t shard = parameters / ranks + (parameters % ranks != 0 ? 1 : 0);
  const std::uint64_t foreign = parameters - parameters / ranks;
  const auto held = [&](int sharded_from) { return stage >= sharded_from ? shard : parameters; };
  const std::uint64_t gradients_sent = stage == 0 ? 2 : 1;
  const std::uint64_t weights_sent = stage == 0 ? 0 : stage == 3 ? 2 : 1;
  return {bytes.weights * held(3), bytes.gradients * held(2), bytes.optimizer * held(1),
          foreign * (bytes.gradients * gradients_sent + bytes.weights * weights_sent)};
}

}  // namespace distx
