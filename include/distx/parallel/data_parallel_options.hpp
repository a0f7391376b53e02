// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>

#include "distx/core/detail/floating_point.hpp"

namespace distx::inline DISTX_ABI {

inline namespace literals {

/// Returns a number of bytes: `64_KiB`.
[[nodiscard]] consteval std::size_t operator""_KiB(unsigned long long n) { return static_cast<std::size_t>(n) << 10; }
/// Returns a number of bytes: `25_MiB`.
[[nodiscard]] consteval std::size_t operator""_MiB(unsigned long long n) { return static_cast<std::size_t>(n) << 20; }

}  // namespace literals

/// One bucket for all parameters: `{.bucket_bytes = unlimited}`.
inline constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

/// The run-time options of a DataParallel. They are compared at construction: every rank passes the same, apart from
/// `.state_folder`.
struct DataParallelOptions {
  /// Bytes of gradients that are reduced together; 0 is one bucket per parameter. The first bucket has at most 1 MiB.
  std::size_t bucket_bytes = 25_MiB;
  /// Whether buckets are reduced from `ready` on, while the backward pass continues. Below stage 2, ranks that reduce
  /// in shared memory do so only if there are more processors than ranks: else both would take turns.
  bool overlap = true;
  /// Whether a parameter may have no gradient in a step. At stage 3 without `overlap`, all gradients of a step are then
  /// in memory at once.
  bool allow_unused = false;
  /// The rank whose weights and buffers all ranks start with.
  int broadcast_from = 0;
  /// The stage of ZeRO<Dynamic>, 0 to 3; an error with another stage.
  std::optional<int> stage{};
  /// Scales the gradients down so that their global norm is at most this; > 0, infinity disables clipping.
  double clip_norm = std::numeric_limits<double>::infinity();
  /// Whether, at stage 3, ranks that share memory (threads, `ShmCommunicator`) read each other's shards of the weights
  /// in place instead of gathering copies: `unshard` then moves no bytes. With `Hierarchical`, weights are gathered
  /// once for each host whose ranks share memory. No effect on other communicators and stages, or where Compress
  /// encodes weights.
  bool map_weights = true;
  /// Whether, at stages 0 to 2, ranks that share memory (threads, `ShmCommunicator`) keep one copy of the owned weights
  /// between them. Each rank updates its part, as at stage 1 also with stage 0, and the others read it in place. The
  /// weights are read-only, and `release` keeps a copy of them for each rank. With `Hierarchical`, the ranks of each
  /// host keep one copy at stages 1 and 2, and gather the parts of other hosts. No effect on other communicators.
  bool share_weights = false;
  /// The ranks that shard among them, with Hybrid; divides the number of ranks. An error without Hybrid.
  int group_ranks = 0;
  /// The first loss scale of float16 parameters with Precision, 65536 by default; 1 disables loss scaling. An error if
  /// there are no such parameters.
  std::optional<double> loss_scale{};
  /// Whether a step in which a rank's loss or gradient is infinite or not a number is skipped on all ranks: weights and
  /// optimizer state remain unchanged, and `skipped_steps` counts it. Without it such a loss throws NonFiniteError, and
  /// so does such a gradient where it is clipped or checked. Each step waits for all gradients, reads them once more
  /// and makes one small reduction more, as clipping does, and updates no weights while gradients are reduced.
  bool skip_nonfinite = false;
  /// Every `guard_every` steps, checks that local gradients are finite (unless losses are scaled or `skip_nonfinite` is
  /// set) and that replicated weights, at stage 0 or in several groups of Hybrid, are bitwise equal. 0 disables it. A
  /// checked step waits for the gradients and reads the weights once more. A gradient gives a NonFiniteError, weights a
  /// MismatchError, on every rank, with the parameter and the number of the step, from 0.
  std::uint64_t guard_every = 0;
  /// Whether the steps in which `announce_batch` finds ranks without a batch divide gradients by the number of ranks
  /// with a batch, instead of the number of ranks.
  bool average_over_active = false;
  /// A folder in which this rank keeps the optimizer's states and master weights in files that it maps, instead of in
  /// memory; empty, in memory. The weights have the same bits. The files have no names, their bytes are reserved on the
  /// disk when the training is constructed, and the system removes them when it ends, however the process ends. A step
  /// reads and writes all of them, and the kernel keeps in memory what fits. The ledger counts them as offloaded. In
  /// host memory only. It may differ between ranks.
  std::string state_folder{};
  /// Whether a training in GPU memory keeps the optimizer's states and master weights in page-locked host memory, which
  /// the kernels of updates read and write in place. The weights have the same bits. Each step moves all of these bytes
  /// to the GPU and back. The ledger counts them as offloaded. In GPU memory only.
  bool offload = false;

  [[nodiscard]] bool clips() const noexcept { return detail::is_finite(clip_norm); }
  [[nodiscard]] double first_loss_scale() const noexcept { return loss_scale.value_or(65536); }
};

/// Which micro-batch of a step begins: `{.index = i, .count = n}`.
struct MicroBatchIndex {
  std::size_t index = 0;  ///< from 0, in order
  std::size_t count = 0;  ///< the number of micro-batches of the step, the same for each of them
};

/// The learning rate of a step. It has no default: a step without one does not compile.
class LearningRate {
 public:
  /// Diagnoses a forgotten learning rate with one compile error.
  template <class Rate = void>
  LearningRate() {
    static_assert(!std::is_void_v<Rate>,
                  "distx: the learning rate of the step is missing; pass {.learning_rate = 0.1}");
  }
  constexpr LearningRate(double value) noexcept : value_(value) {}  // NOLINT: converts from every number
  constexpr operator double() const noexcept { return value_; }     // NOLINT: and to one

 private:
  double value_ = 0;
};

/// The options of one step.
struct StepOptions {
  /// Finite and >= 0, and the same on every rank: DataParallel compares the ranks' values, and their numbers of
  /// micro-batches, in the first step, in every 32nd after it, and before whole weights are read.
  LearningRate learning_rate;
  /// The loss of this rank's batch, if the step is to check that it is finite, or to be skipped otherwise. Not
  /// compared.
  double loss = 0;
};

}  // namespace distx::inline DISTX_ABI
