// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/data_parallel_options.hpp"
#include "distx/parallel/detail/engine/parameter_store.hpp"
#include "distx/parallel/detail/engine/training_communicators.hpp"
#include "distx/parallel/detail/engine/training_policies.hpp"
#include "distx/parallel/detail/engine/weight_gather.hpp"

namespace distx::detail {

/// This rank's shards of the optimizer: updates them, and gathers what other ranks have updated.
///
/// At stage 0 every rank updates everything; at stages 1 and 2 the weights are gathered after the update; at stage 3
/// they stay sharded.
template <MemorySpace Space>
class OptimizerShards {
 public:
  using stream = typename Space::stream;
  using here = std::source_location;

  OptimizerShards(Buckets<Space>& buckets, ParameterStore<Space>& parameters, TrainingCommunicators<Space>& comms,
                  const TrainingPolicies& policies, bool overlap)
      : buckets_(buckets), parameters_(parameters), comms_(comms), policies_(policies), overlap_(overlap) {
    while (count_ < buckets.size() && buckets[count_].trained) ++count_;
    gathers_.resize(count_);
  }

  /// Whether a gradient is multiplied only while it is converted to the master weights' type.
  [[nodiscard]] bool scales_late(const Segment<Space>& segment) const noexcept {
    return segment.gradient.element_bytes() == 2 && policies_.communication_type.has_value();
  }

  /// Updates this rank's part of a bucket with its reduced gradients.
  /// @param factor  multiplies the gradients
  /// @param late  whether it multiplies only those that are scaled late; the others are scaled already
  void update(std::size_t index, const StepOptions& options, const GradientFactor& factor, bool late, stream after,
              const here& location) {
    Bucket<Space>& bucket = buckets_[index];
    auto& steps = parameters_.steps();
    for (const auto member : bucket.members)
      if (!steps[member].skipped) ++steps[member].updates;
    pieces_.clear();
    std::size_t number = 0;
    for (const auto& buffer : bucket.buffers) {
      for (const auto& piece : buffer.updated) {
        const std::size_t i = number++;
        if (steps[piece.entry].skipped) continue;
        const auto& group = parameters_[piece.entry].options.group;
        pieces_.push_back(
            {i,
             {options.learning_rate * group.learning_rate_scale, steps[piece.entry].updates, group.weight_decay},
             buffer.segment(piece, parameters_.entries())});
      }
    }
    const bool sharded = policies_.stage > 0 && comms_.shards() > 1;
    const bool scaled = late && !pieces_.empty() && !scales_late(pieces_.front().segment);
    bucket.update->update(after, pieces_, scaled ? GradientFactor{} : factor, sharded ? &comms_.reducing() : nullptr,
                          location);
  }

  /// Starts to gather a bucket's weights while later buckets are updated.
  void start_gather(std::size_t index, stream after, const here& location) {
    if (overlap_) gather_bucket(index, after, location);
  }
  /// Completes the gathers of all buckets, and starts those that have not started.
  void gather(stream after, const here& location) {
    for (std::size_t i = 0; i < count_; ++i)
      if (!gathers_[i].started()) gather_bucket(i, after, location);
    for (std::size_t i = 0; i < count_; ++i) gathers_[i].finish(buckets_[i], parameters_.entries(), after);
  }

  /// Calls f(segment) for every piece that this rank updates.
  template <class F>
  void each_updated(F&& f) const {
    each(&FlatBuffer<Space>::updated, f);
  }
  /// Calls f(segment) for every piece of this rank's shards.
  template <class F>
  void each_kept(F&& f) const {
    each(&FlatBuffer<Space>::kept, f);
  }
  /// Ends what is in flight, or waits for it, before its memory is released.
  void abandon() noexcept {
    for (auto& gather : gathers_) gather.abandon();
  }

 private:
  void gather_bucket(std::size_t index, stream after, const here& location) {
    if ((policies_.stage != 1 && policies_.stage != 2) || comms_.shards() == 1) return;
    const flight::Label label = label_of(buckets_[index], "gather", index, parameters_.entries());
    gathers_[index].start(buckets_[index], comms_.gathering(), parameters_.entries(), overlap_, 0, after, location);
  }
  template <class F>
  void each(std::vector<ShardPiece> FlatBuffer<Space>::*pieces, F&& f) const {
    for (std::size_t i = 0; i < count_; ++i)
      for (const auto& buffer : buckets_[i].buffers)
        for (const auto& piece : buffer.*pieces) f(buffer.segment(piece, parameters_.entries()));
  }

  Buckets<Space>& buckets_;
  ParameterStore<Space>& parameters_;
  TrainingCommunicators<Space>& comms_;
  TrainingPolicies policies_;
  bool overlap_;
  std::size_t count_ = 0;  // of trained buckets, the first ones
  std::vector<WeightGather<Space>> gathers_;
  std::vector<PieceStep<Space>> pieces_;  // of the bucket that is updated
};

}  // namespace distx::detail
