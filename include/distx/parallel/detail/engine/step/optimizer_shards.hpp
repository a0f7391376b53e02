// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <map>

#include "distx/comm/detail/in_order.hpp"
#include "distx/parallel/data_parallel_options.hpp"
#include "distx/parallel/detail/base/training_communicators.hpp"
#include "distx/parallel/detail/base/training_policies.hpp"
#include "distx/parallel/detail/engine/gather/weight_gather.hpp"
#include "distx/parallel/detail/engine/parameters/parameter_store.hpp"
#include "distx/parallel/detail/engine/step/mesh_matrices.hpp"
#include "distx/parallel/detail/engine/step/one_pass_update.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The optimizer's coefficients of a step in the memory where captured kernels read them.
///
/// The host computes them for each step, as for a step that is not captured, so that both have the same bits.
template <MemorySpace Space>
class StepCoefficients {
 public:
  using stream = typename Space::stream;

  explicit StepCoefficients(std::size_t bytes) : there_(bytes) {
    for (auto& slot : slots_) slot.here = StagingBuffer<std::byte, Space>(bytes);
  }

  [[nodiscard]] const std::byte* there() const noexcept { return there_.data(); }
  /// Returns the host's memory for the next step's. Blocks the host only if it is several steps ahead.
  [[nodiscard]] std::byte* here() {
    const CoefficientSlot& slot = slots_[turn_];
    if (!slot.copied.done()) slot.copied.synchronize();
    return slot.here.data();
  }
  /// Enqueues the copy of what was written there.
  void upload(stream after) {
    const CoefficientSlot& slot = slots_[turn_];
    copy(after, there_.span(), Span<const std::byte>(slot.here));
    slot.copied.record(after);
    turn_ = (turn_ + 1) % slots_.size();
  }

 private:
  struct CoefficientSlot {
    StagingBuffer<std::byte, Space> here{};
    typename Space::event copied{};
  };

  Buffer<std::byte, Space> there_;
  std::array<CoefficientSlot, 4> slots_{};
  std::size_t turn_ = 0;
};

/// This rank's shards of the optimizer: updates them, and gathers what other ranks have updated.
///
/// At stage 0 every rank updates everything; at stages 1 and 2 the weights are gathered after the update, unless the
/// ranks share them; at stage 3 they stay sharded.
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
  [[nodiscard]] bool scales_late(const Fragment<Space>& fragment) const noexcept {
    return fragment.gradient.element_bytes() == 2 && policies_.communication_type.has_value();
  }

  /// Updates this rank's part of a bucket with its reduced gradients.
  /// @param factor  of all gradients if it is in their memory, else of those that are scaled late
  void update(std::size_t index, const StepOptions& options, const GradientFactor& factor, stream after,
              const here& location) {
    begin_update(buckets_[index], options);
    update_fragments(index, factor, after, location);
  }
  /// Makes `update_all` take the place of `update`: norms are those of whole weights over the ranks of `across` too.
  /// @param numbers  of each parameter of this rank  @param count  of all numbers
  void update_together(AnyCommunicator<Space>& across, std::vector<NormNumber> numbers, std::size_t count) {
    across_.emplace(across.share());
    numbers_ = std::move(numbers);
    norms_ = count;
  }
  /// Does the same for an optimizer that needs whole matrices.
  void update_together(MeshMatrices<Space> matrices, std::vector<NormNumber> numbers) {
    matrices_.emplace(std::move(matrices));
    numbers_ = std::move(numbers);
  }
  [[nodiscard]] bool update_together() const noexcept { return across_ || matrices_; }
  /// Updates this rank's parts of all buckets at once, since other ranks may have a weight's parts in other buckets.
  /// Collective over the mesh.
  void update_all(const StepOptions& options, const GradientFactor& factor, stream after, const here& location) {
    if constexpr (HostAccessible<Space>)
      if (matrices_) return update_matrices(options, factor, after, location);
    SharedNorms<Space> norms(2 * norms_);
    std::vector<FragmentSteps<Space>> fragments(count_);
    const auto make = [&](NormPhase phase) {
      for (std::size_t i = 0; i < count_; ++i)
        buckets_[i].update->update_by_norms(phase, after, fragments[i], factor_of(fragments[i], factor), norms,
                                            numbers_);
    };
    for (std::size_t i = 0; i < count_; ++i) {
      begin_update(buckets_[i], options);
      fragments[i] = fragments_;
    }
    make(NormPhase::direct);
    for (auto* const comm : {sharding(), &*across_}) norms.agree(after, comm, location);
    make(NormPhase::add);
    for (auto* const comm : {sharding(), &*across_}) norms.sum(after, comm, location);
    make(NormPhase::apply);
  }
  /// Does the same as `update` with gradients that are not reduced yet: `reduce(update)` reduces them, and passes them
  /// to `update` or stores them. @pre the gradients are not scaled
  template <class F>
  void update_in_one_pass(std::size_t index, const StepOptions& options, stream after, const here& location,
                          F&& reduce) {
    begin_update(buckets_[index], options);
    one_pass_.begin(buckets_[index], fragments_);
    reduce(one_pass_);
    std::erase_if(fragments_, [&](const auto& each) { return one_pass_.consumed(each.index); });
    update_fragments(index, {}, after, location);
  }

  /// Whether steps can be captured: whether the host computes only the optimizer's coefficients.
  [[nodiscard]] bool capturable() const noexcept {
    for (std::size_t i = 0; i < count_; ++i)
      if (buckets_[i].update->coefficient_bytes() == 0) return false;
    return true;
  }
  /// @name Steps that are captured: their updates read the optimizer's coefficients where `replay` writes them
  /// @{
  void begin_capture() {
    coefficient_offsets_.clear();
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      coefficient_offsets_.push_back(bytes);
      std::size_t fragments = 0;
      for (const auto& buffer : buckets_[i].buffers) fragments += buffer.updated.size();
      bytes += round_up_to_lines(fragments * buckets_[i].update->coefficient_bytes());
    }
    if constexpr (!HostAccessible<Space>) coefficients_ = std::make_shared<StepCoefficients<Space>>(bytes);
    captures_ = true;
  }
  /// Takes back the step that was captured: it has updated nothing.
  void end_capture() {
    captures_ = false;
    for (std::size_t i = 0; i < count_; ++i)
      for (const auto member : buckets_[i].members) --parameters_.steps()[member].updates;
  }
  /// Enqueues the coefficients of the captured step that is replayed next.
  void replay(const StepOptions& options, stream after) {
    if constexpr (!HostAccessible<Space>) {
      std::byte* const memory = coefficients_->here();
      for (std::size_t i = 0; i < count_; ++i) {
        begin_update(buckets_[i], options);
        buckets_[i].update->write_coefficients(fragments_, memory + coefficient_offsets_[i]);
      }
      coefficients_->upload(after);
    }
  }
  /// @}

  /// Starts to gather a bucket's weights while later buckets are updated.
  void start_gather(std::size_t index, stream after, const here& location) {
    if (overlap_) gather_bucket(index, after, location);
  }
  /// Completes the gathers of all buckets, and starts those that have not started.
  void gather(stream after, const here& location) {
    for (std::size_t i = 0; i < count_; ++i)
      if (!gathers_[i].in_flight()) gather_bucket(i, after, location);
    for (std::size_t i = 0; i < count_; ++i) gathers_[i].finish(buckets_[i], parameters_.entries(), after);
  }

  /// Returns the fragments that this rank updates in this step.
  /// @param late_factor  multiplies the gradients that are scaled late
  [[nodiscard]] std::vector<Fragment<Space>> fragments(double late_factor) const {
    std::vector<Fragment<Space>> all;
    each_updated([&](Fragment<Space> fragment) {
      if (parameters_.steps()[fragment.parameter].skipped) return;
      if (scales_late(fragment)) fragment.scale = late_factor;
      all.push_back(fragment);
    });
    return all;
  }
  /// Calls f(fragment) for every fragment that this rank updates.
  template <class F>
  void each_updated(F&& f) const {
    each(&FlatBuffer<Space>::updated, f);
  }
  /// Calls f(fragment) for every fragment of this rank's shards.
  template <class F>
  void each_kept(F&& f) const {
    each(&FlatBuffer<Space>::kept, f);
  }
  /// Ends what is in flight, or waits for it, before its memory is released.
  void abandon() noexcept {
    for (auto& gather : gathers_) gather.abandon();
  }

 private:
  /// Counts an update of a bucket, and sets `fragments_` to the steps of its fragments.
  void begin_update(const Bucket<Space>& bucket, const StepOptions& options) {
    auto& steps = parameters_.steps();
    for (const auto member : bucket.members)
      if (!steps[member].skipped) ++steps[member].updates;
    fragments_.clear();
    std::size_t number = 0;
    for (const auto& buffer : bucket.buffers) {
      for (const auto& range : buffer.updated) {
        const std::size_t i = number++;
        if (steps[range.entry].skipped) continue;
        const auto& group = parameters_[range.entry].options.group;
        fragments_.push_back(
            {i,
             {options.learning_rate * group.learning_rate_scale, steps[range.entry].updates, group.weight_decay},
             buffer.fragment(range, parameters_.entries())});
      }
    }
  }
  void update_matrices(const StepOptions& options, const GradientFactor& factor, stream after, const here& location) {
    std::map<std::size_t, std::pair<std::size_t, FragmentStep<Space>>> parts;  // their buckets, by their numbers
    for (std::size_t i = 0; i < count_; ++i) {
      begin_update(buckets_[i], options);
      FragmentSteps<Space> others;
      for (auto& each : fragments_) {
        const std::size_t parameter = each.fragment.parameter;
        if (parameters_[parameter].options.rows > 0)
          parts.emplace(numbers_[parameter].number, std::pair(i, each));
        else
          others.push_back(each);
      }
      fragments_ = std::move(others);
      update_fragments(i, factor, after, location);
    }
    // Of the ranks along the data axis that update the same part, the first one sends it.
    auto* const alike = sharding() != nullptr ? comms_.across() : &comms_.all();
    matrices_->update(
        after, location,
        [&](std::size_t number) -> Span<AnyElement, Space> {
          const auto found = parts.find(number);
          if (found == parts.end()) return {};
          const auto& [bucket, step] = found->second;
          const auto direction = buckets_[bucket].update->direct(after, step, factor_of({step}, factor));
          const bool sends = numbers_[step.fragment.parameter].adds && (alike == nullptr || alike->rank() == 0);
          return sends ? direction : Span<AnyElement, Space>();
        },
        [&](std::size_t number, Span<AnyElement, Space> direction, double scale_by) {
          const auto found = parts.find(number);
          if (found == parts.end()) return;
          const auto& [bucket, step] = found->second;
          buckets_[bucket].update->apply(after, step, direction, scale_by);
        });
  }
  void update_fragments(std::size_t index, const GradientFactor& factor, stream after, const here& location) {
    buckets_[index].update->update(after, fragments_, factor_of(fragments_, factor),
                                   captures_ ? coefficients_->there() + coefficient_offsets_[index] : nullptr,
                                   sharding(), location);
  }
  /// Returns the communicator of the ranks that share an update; null if this rank makes it alone.
  [[nodiscard]] AnyCommunicator<Space>* sharding() noexcept {
    return policies_.stage > 0 && comms_.shards() > 1 ? &comms_.reducing() : nullptr;
  }
  /// Returns what multiplies the gradients of these fragments now.
  [[nodiscard]] GradientFactor factor_of(const FragmentSteps<Space>& fragments, const GradientFactor& factor) const {
    const bool late = fragments.empty() || scales_late(fragments.front().fragment);  // all have one type
    return factor.there != nullptr || late ? factor : GradientFactor{};
  }
  void gather_bucket(std::size_t index, stream after, const here& location) {
    if ((policies_.stage != 1 && policies_.stage != 2) || comms_.shards() == 1) return;
    const auto& buffer = buckets_[index].buffers.front();
    if (!buffer.mapped_value.empty() && !buffer.mapped_on_host) return;
    const flight::Label label = label_of(buckets_[index], "gather", index, parameters_.entries());
    gathers_[index].start(buckets_[index], comms_.gathering(), parameters_.entries(), overlap_, 0, {}, after, location);
  }
  template <class F>
  void each(std::vector<FragmentRange> FlatBuffer<Space>::*fragments, F&& f) const {
    for (std::size_t i = 0; i < count_; ++i)
      for (const auto& buffer : buckets_[i].buffers)
        for (const auto& range : buffer.*fragments) f(buffer.fragment(range, parameters_.entries()));
  }

  Buckets<Space>& buckets_;
  ParameterStore<Space>& parameters_;
  TrainingCommunicators<Space>& comms_;
  TrainingPolicies policies_;
  bool overlap_;
  std::size_t count_ = 0;  // of trained buckets, the first ones
  std::vector<WeightGather<Space>> gathers_;
  FragmentSteps<Space> fragments_;                           // of the bucket that is updated
  OnePassUpdate<Space> one_pass_{};                          // of these fragments
  std::shared_ptr<StepCoefficients<Space>> coefficients_{};  // null until a step is captured
  std::vector<std::size_t> coefficient_offsets_;             // of each bucket
  bool captures_ = false;
  std::optional<MeshMatrices<Space>> matrices_{};  // of `update_together`, as the next three
  std::optional<AnyCommunicator<Space>> across_{};
  std::vector<NormNumber> numbers_{};
  std::size_t norms_ = 0;
};

}  // namespace distx::inline DISTX_ABI::detail
