// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <optional>

#include "distx/parallel/detail/engine/assembly.hpp"
#include "distx/parallel/detail/optimizer/gradient_norm.hpp"
#include "distx/parallel/loss_scaler.hpp"
#include "distx/parallel/unsharded.hpp"

namespace distx::detail {

/// What DataParallel does, for one memory space: no communicator's, optimizer's or element's type is left in it.
///
/// Whatever goes wrong on this rank alone revokes the communicator, so that no other rank waits for it.
template <MemorySpace Space>
class Training {
 public:
  using stream = typename Space::stream;
  using here = std::source_location;

  Training(AnyCommunicator<Space> comm, std::vector<Entry<Space>> entries, const AnyOptimizer<Space>& optimizer,
           const TrainingPolicies& policies, const DataParallelOptions& options, const here& location)
      : all_(std::move(comm), std::move(entries), optimizer, policies, options, location) {
    for (const auto& entry : all_.entries)
      if (entry.trained() && entry.type() == ElementType::f16 && all_.policies.wire)
        scaler_ = LossScaler(options.loss_scale);
  }

  /// The first gradient of a step is zero.
  void touch(const void* identity, stream after) {
    all_.guarded([&] {
      demand_gradients("gradient");
      all_.calls.enter(after);
      const std::size_t index = all_.find(identity, "gradient");
      const Entry<Space>& entry = all_.entries[index];
      all_.uses.demand_unsent(index, entry, all_.context("gradient"));
      auto& use = all_.uses[index];
      if (std::exchange(use.touched, true)) return order<Space>(use.zeroed_on, after);
      use.zeroed_on = after;
      fill(after, bytes_of(entry.gradient), std::byte{0});
    });
  }

  void ready(const void* identity, stream after) {
    all_.guarded([&] {
      demand_gradients("ready");
      all_.calls.enter(after);
      const std::size_t index = all_.find(identity, "ready");
      const Entry<Space>& entry = all_.entries[index];
      if (phase_ != Phase::backward)
        all_.fail("ready", "'" + entry.name + "' comes after reduce: call gather, or step, first", all_.location);
      const bool last_use = all_.uses.ready(index, entry, all_.context("ready"));
      all_.buckets[all_.bucket_of[index]].ready_on.add(after);  // of this use, whichever micro-batch sends it
      if (!last_use) return;
      if (entry.owned) {
        entry.owned->touch(after);
        entry.owned->sent = true;
      }
      if (last_ || all_.policies.accumulation == Accumulation::sharded)
        all_.reducer->ready(all_.bucket_of[index], after, all_.location);
    });
  }

  /// Another micro-batch of this step begins; the gradients of those before are kept.
  void begin_micro_batch(bool last, stream after, const here& location) {
    all_.guarded([&] {
      demand_open("micro_batch", location);
      all_.calls.enter(after);
      if (phase_ != Phase::backward)
        all_.fail("micro_batch", "the gradients are reduced already: call update and gather first", location);
      if (micro_batches_++ > 0) {
        if (last_)
          all_.fail("micro_batch", "the micro-batch before was declared the last one of its step: call step first",
                    location);
        end_micro_batch(after, location);
        all_.calls.leave(after);
      }
      last_ = last;
    });
  }

  void step(const StepOptions& options, stream after, const here& location) {
    all_.guarded([&] {
      demand_open("step", location);
      check_step(options, "step", location);
      all_.calls.enter(after);
      launch(after, location);
      if (looks()) look(after, location);
      check_scopes("step", location);
      for (std::size_t i = 0; i < all_.reducer->count() && !skips_; ++i) {
        all_.reducer->finish(i, after);
        update_bucket(all_.buckets[i], options, after, location);
        if (gathers() && all_.options.overlap) all_.buckets[i].start_gather(all_.wires, all_.entries, after, location);
      }
      phase_ = Phase::updated;
      all_.reducer->finish_all(after);
      end_step(after, location);
      all_.calls.leave(after);
    });
  }

  void reduce(stream after, const here& location) {
    all_.guarded([&] {
      demand_open("reduce", location);
      all_.calls.enter(after);
      launch(after, location);
      if (looks()) look(after, location);
      all_.reducer->finish_all(after);
      all_.calls.leave(after);
      phase_ = Phase::reduced;
    });
  }

  void update(const StepOptions& options, stream after, const here& location) {
    all_.guarded([&] {
      demand_open("update", location);
      check_step(options, "update", location);
      all_.calls.enter(after);
      if (phase_ != Phase::reduced) all_.fail("update", "the gradients are not reduced: call reduce first", location);
      check_scopes("update", location);
      for (std::size_t i = 0; i < all_.reducer->count() && !skips_; ++i)
        update_bucket(all_.buckets[i], options, after, location);
      all_.calls.leave(after);
      phase_ = Phase::updated;
    });
  }

  void gather(stream after, const here& location) {
    all_.guarded([&] {
      demand_open("gather", location);
      all_.calls.enter(after);
      if (phase_ == Phase::backward) all_.fail("gather", "the gradients are not reduced: call reduce first", location);
      check_scopes("gather", location);
      end_step(after, location);
      all_.calls.leave(after);
    });
  }

  /// What this rank updates.
  [[nodiscard]] std::vector<Segment<Space>> owned(const here& location) {
    if (phase_ == Phase::backward)
      all_.fail("owned", "the gradients are not reduced: call reduce first, and gather afterwards", location);
    std::vector<Segment<Space>> segments;
    if (skips_) return segments;
    each_segment(&Run<Space>::updated, [&](Segment<Space> segment) {
      if (all_.uses[segment.parameter].skipped) return;
      if (is_short(segment)) segment.scale = factor_;
      segments.push_back(segment);
    });
    return segments;
  }

  /// Calls f(name, values) for every parameter, whole, in the order of the list.
  void for_each_full_weight(const std::function<void(const std::string&, Span<const AnyElement, Space>)>& f,
                            stream after, const here& location) {
    all_.guarded([&] {
      demand_between_steps("for_each_full_weight", location);
      all_.calls.enter(after);
      Unsharded<Space> scope;
      std::size_t unit = ~std::size_t{0};
      for (std::size_t i = 0; i < all_.entries.size(); ++i) {
        const auto& entry = all_.entries[i];
        if (entry.buffer) continue;
        if (all_.units != nullptr && entry.owned && unit != all_.units->unit_of(i)) {
          unit = all_.units->unit_of(i);
          scope = {};
          scope.hold(all_.units, unit, after, location, false);
        }
        f(entry.name, entry.value_now());
      }
      all_.calls.leave(after);
    });
  }

  /// Gives parameters whose weights are sharded whole ones, of their own, and ends the training.
  void release(stream after, const here& location) {
    all_.guarded([&] {
      demand_between_steps("release", location);
      check_scopes("release", location);
      if (without_gradients_.use_count() > 1)
        all_.fail("release", "a moving average has the weights' place: let the scope of swap_in end first", location);
      all_.calls.enter(after);
      std::vector<Held<Space>> values;  // of each bucket
      for (std::size_t i = 0; i < (all_.units == nullptr ? 0 : all_.buckets.size()); ++i) {
        const auto& bucket = all_.buckets[i];
        values.push_back(hold_local<Space>(all_.account, MemoryKind::weights, bucket.runs.front().layout.bytes()));
        Unsharded<Space> scope;
        scope.hold(all_.units, all_.units->unit_of(bucket.members.front()), after, location, false);
        copy(after, values[i]->span(), bytes_of(bucket.runs.front().value));
      }
      for (std::size_t i = 0; i < values.size(); ++i) {
        const Layout& layout = all_.buckets[i].runs.front().layout;
        for (const auto& place : layout.places) {
          auto& state = *all_.entries[place.entry].owned;
          state.value_memory = values[i];
          state.value = layout.over(values[i]->span()).subspan(place.begin, place.size);
          state.sharded = false;
        }
      }
      all_.let_parameters_go();
      phase_ = Phase::released;
    });
  }

  /// Runs `change`, which changes what this rank updates, and tells all ranks.
  template <class F>
  void change_values(stream after, const here& location, F&& change) {
    all_.guarded([&] {
      demand_between_steps("swap_in", location);
      check_scopes("swap_in", location);
      all_.calls.enter(after);
      if (all_.units != nullptr) all_.units->forget(after);
      change();
      gather_values(after, location);
      all_.calls.leave(after);
    });
  }
  /// Enqueues something about all of it.
  template <class F>
  void ordered(stream after, F&& f) {
    all_.guarded([&] {
      all_.calls.enter(after);
      f();
      all_.calls.leave(after);
    });
  }
  template <class F>
  void each_updated(F&& f) {
    each_segment(&Run<Space>::updated, f);
  }
  [[nodiscard]] const std::shared_ptr<MemoryAccount>& account() const noexcept { return all_.account; }
  /// Where it was made: for errors of calls that are given no line of their own.
  [[nodiscard]] const here& location() const noexcept { return all_.location; }
  void check_decay(double decay, const here& location) {
    all_.guarded([&] {
      if (!(decay >= 0 && decay < 1))
        all_.fail("average", "the decay is " + std::to_string(decay) + ": it must be at least 0 and below 1, 0.999 say",
                  location);
    });
  }

  [[nodiscard]] Evaluation<Space> evaluate() { return {evaluations_, all_.units}; }
  /// While it is held, gradients are refused.
  [[nodiscard]] std::shared_ptr<void> without_gradients() const noexcept { return without_gradients_; }
  /// @throws MismatchError where there are no gradients now
  void demand_gradients(const char* operation) {
    all_.guarded([&] {
      demand_open(operation, all_.location);
      if (*evaluations_ > 0 || without_gradients_.use_count() > 1)
        all_.fail(operation, "there are no gradients in a scope of evaluate() or swap_in(): let it end first",
                  all_.location);
    });
  }

  [[nodiscard]] std::size_t bucket_count() const noexcept { return all_.reducer->count(); }
  [[nodiscard]] double gradient_norm() const noexcept { return norm_; }
  [[nodiscard]] const LossScaler& scaler() const noexcept { return scaler_; }
  [[nodiscard]] MemoryLedger memory() const { return all_.account->ledger(); }
  /// Null where weights are not sharded.
  [[nodiscard]] const std::shared_ptr<Units<Space>>& units() const noexcept { return all_.units; }
  /// Of a parameter's unit. @pre units() is not null
  [[nodiscard]] std::size_t unit_of(const void* identity, stream after) {
    std::size_t unit = 0;
    all_.guarded([&] {
      demand_open("unshard", all_.location);
      all_.calls.enter(after);
      const std::size_t index = all_.find(identity, "unshard");
      unit = all_.units->unit_of(index);
      if (!Units<Space>::is_unit(unit))
        all_.fail("unshard", "'" + all_.entries[index].name + "' is whole: its memory is the user's", all_.location);
    });
    return unit;
  }
  template <class F>
  void guarded(F&& f) {
    all_.guarded(f);
  }
  /// The norm is that of the parameters of `others`'s ranks too; `counts` says of each of this rank's whether it is
  /// counted here. @pre counts.size() is the number of entries
  void count_in_norm(AnyCommunicator<Space> others, std::vector<bool> counts) {
    others_ = std::move(others);
    counts_ = std::move(counts);
    // Of the parameters of float16 this rank may have no part, and scales its losses, and looks, all the same.
    if (largest_of(*others_, scaler_.on() ? 1 : 0, all_.location) > 0) scaler_ = LossScaler(all_.options.loss_scale);
  }

 private:
  enum class Phase { backward, reduced, updated, released };

  void demand_open(const char* operation, const here& location) const {
    if (phase_ == Phase::released)
      all_.fail(operation, "release() has ended this training: make a new one of the parameters", location);
  }

  /// Whether the ranks have updated different parts of weights that all of them hold.
  [[nodiscard]] bool gathers() const noexcept {
    return (all_.policies.stage == 1 || all_.policies.stage == 2) && all_.wires.parts() > 1;
  }

  void end_micro_batch(stream after, const here& location) {
    const bool sharded = all_.policies.accumulation == Accumulation::sharded;
    if (sharded) {
      settle_unused(after, location);
      all_.reducer->launch_rest(after, location);
      all_.reducer->finish_all(after);
    } else {
      all_.uses.demand_all(all_.entries, all_.options.allow_unused, all_.context("micro_batch", location));
    }
    all_.reducer->restart(true);
    all_.uses.restart(false, sharded);
    for (const auto& entry : all_.entries) {
      if (!entry.owned) continue;
      entry.owned->sent = false;
      if (sharded) entry.owned->touched = false;
    }
  }

  /// Begins every reduction of the step that has not begun.
  void launch(stream after, const here& location) {
    if (phase_ != Phase::backward)
      all_.fail("reduce", "the gradients are reduced already: call update and gather next", location);
    if (!last_)
      all_.fail("reduce", "no micro-batch of this step was declared the last one: pass true to micro_batch for it",
                location);
    settle_unused(after, location);
    all_.reducer->launch_rest(after, location);
    // Behind all reductions: other ranks may wait for one of these, and only then come here.
    if (all_.options.allow_unused) all_.uses.agree(all_.wires.all, location);
  }
  /// Zeros for what may be without gradient and is.
  void settle_unused(stream after, const here& location) {
    all_.uses.demand_all(all_.entries, all_.options.allow_unused, all_.context("reduce", location));
    if (all_.options.allow_unused) {
      for (std::size_t i = 0; i < all_.entries.size(); ++i) {
        const Entry<Space>& entry = all_.entries[i];
        if (!entry.trained() || all_.uses[i].ready > 0) continue;
        // What an earlier micro-batch has left in place stays.
        if (all_.uses[i].used && all_.policies.accumulation == Accumulation::local) continue;
        if (entry.owned)
          entry.owned->touch(after);
        else if (all_.wires.all.size() > 1)
          fill(after, bytes_of(entry.gradient), std::byte{0});
      }
    }
  }

  /// Whether a step looks at all gradients before it uses any.
  [[nodiscard]] bool looks() const noexcept { return all_.options.clips() || scaler_.on(); }
  /// Gradients that are multiplied only when they are cast to master weights' type.
  [[nodiscard]] bool is_short(const Segment<Space>& segment) const noexcept {
    return segment.gradient.element_bytes() == 2 && all_.policies.wire;
  }

  /// Finds the norm, and by which factor gradients are to be multiplied; a step with a scaled loss is skipped, on all
  /// ranks, where they are not finite.
  void look(stream after, const here& location) {
    all_.reducer->finish_all(after);
    std::vector<Segment<Space>> gradients;
    each_segment(&Run<Space>::kept, [&](const auto& segment) {
      if (!all_.uses[segment.parameter].skipped) gradients.push_back(segment);
    });
    auto& comm = all_.wires.reducing;
    GradientExtent extent = extent_of(comm, after, gradients, all_.entries.size(), location);
    const bool finite = extent.not_finite == GradientExtent::none;
    if (others_) extent.largest = largest_of(*others_, finite ? extent.largest : not_finite, location);
    factor_ = 1 / scaler_.scale();
    if (!finite || extent.largest == not_finite) {
      if (!scaler_.on())
        throw NonFiniteError((finite ? "a gradient of another rank's part of the model"
                                     : "the gradient of '" + all_.entries[extent.not_finite].name + "'") +
                                 " is infinite or not a number, so that there is no norm to clip: lower the learning "
                                 "rate, or look at what this step was fed",
                             all_.context("step", location));
      scaler_.not_finite();
      skips_ = true;
      return;
    }
    scaler_.finite();
    if (all_.options.clips()) {
      if (others_) std::erase_if(gradients, [&](const auto& segment) { return !counts_[segment.parameter]; });
      norm_ = norm_of(comm, others_ ? &*others_ : nullptr, after, gradients, extent.largest, location) * factor_;
      if (norm_ > all_.options.clip_norm) factor_ *= all_.options.clip_norm / norm_;
    }
    if (factor_ == 1) return;
    each_segment(&Run<Space>::updated, [&](const auto& segment) {
      if (!is_short(segment)) with_type(segment.gradient, [&](auto values) { scale(after, values, factor_); });
    });
  }

  void update_bucket(Bucket<Space>& bucket, const StepOptions& options, stream after, const here& location) {
    for (const auto member : bucket.members)
      if (!all_.uses[member].skipped) ++all_.uses[member].updates;
    pieces_.clear();
    std::size_t number = 0;
    for (const auto& run : bucket.runs) {
      for (const auto& piece : run.updated) {
        const std::size_t index = number++;
        if (all_.uses[piece.entry].skipped) continue;
        const auto& group = all_.entries[piece.entry].options.group;
        auto segment = run.segment(piece, all_.entries);
        if (is_short(segment)) segment.scale = factor_;
        pieces_.push_back(
            {index,
             {options.learning_rate * group.learning_rate_scale, all_.uses[piece.entry].updates, group.weight_decay},
             segment});
      }
    }
    const bool in_parts = all_.policies.stage > 0 && all_.wires.parts() > 1;
    bucket.update->update(after, pieces_, in_parts ? &all_.wires.reducing : nullptr, location);
  }

  void gather_values(stream after, const here& location) {
    for (std::size_t i = 0; i < (gathers() ? all_.reducer->count() : 0); ++i) {
      auto& bucket = all_.buckets[i];
      if (!all_.options.overlap)
        bucket.execute_gather(all_.wires, all_.entries, after, location);
      else if (!bucket.gathers())
        bucket.start_gather(all_.wires, all_.entries, after, location);
    }
    for (std::size_t i = 0; i < (gathers() ? all_.reducer->count() : 0); ++i)
      all_.buckets[i].finish_gather(all_.entries, after);
  }

  void end_step(stream after, const here& location) {
    gather_values(after, location);
    all_.reducer->restart(false);
    all_.uses.restart(true, true);
    micro_batches_ = 0;
    last_ = true;
    skips_ = false;
    factor_ = 1;
    for (const auto& entry : all_.entries)
      if (entry.owned) entry.owned->touched = entry.owned->sent = false;
    if (all_.units != nullptr) all_.units->restart(after);
    phase_ = Phase::backward;
  }

  void check_step(const StepOptions& options, const char* operation, const here& location) {
    if (std::isnan(options.learning_rate))
      all_.fail(operation, "the learning rate is not a number: pass one, {.learning_rate = 1e-3} say", location);
    if (!std::isfinite(options.learning_rate) || options.learning_rate < 0)
      all_.fail(operation,
                "the learning rate is " + std::to_string(options.learning_rate) + ": it must be finite and at least 0",
                location);
    if (!std::isfinite(options.loss) && !scaler_.on())
      throw NonFiniteError("the loss is " + std::to_string(options.loss) +
                               ": lower the learning rate, or look at what "
                               "this step was fed; the losses of float16 parameters are scaled by Precision",
                           all_.context(operation, location));
  }
  void demand_between_steps(const char* operation, const here& location) const {
    demand_open(operation, location);
    if (phase_ != Phase::backward || all_.reducer->begun())
      all_.fail(operation, "a step goes on: call it behind gather, or step, and before ready", location);
  }
  void check_scopes(const char* operation, const here& location) {
    if (all_.units == nullptr) return;
    if (const std::string* unit = all_.units->held(); unit != nullptr)
      all_.fail(operation,
                "the weights of '" + *unit +
                    "' are unsharded, and would be out of date: let the scope of "
                    "unshard end first",
                location);
  }

  template <class F>
  void each_segment(std::vector<Piece> Run<Space>::*pieces, F&& f) {
    for (std::size_t i = 0; i < all_.reducer->count(); ++i)
      for (const auto& run : all_.buckets[i].runs)
        for (const auto& piece : run.*pieces) f(run.segment(piece, all_.entries));
  }

  Assembly<Space> all_;
  Phase phase_ = Phase::backward;
  std::size_t micro_batches_ = 0;  // of this step, so far
  bool last_ = true;               // the micro-batch that goes on is the step's last
  bool skips_ = false;             // this step's gradients are not finite: it changes nothing
  double factor_ = 1;              // by which this step's gradients are multiplied
  double norm_ = 0;
  LossScaler scaler_;
  std::optional<AnyCommunicator<Space>> others_{};                      // whose parameters the norm is of too
  std::vector<bool> counts_{};                                          // in the norm, on this rank: of each entry
  std::vector<PieceStep<Space>> pieces_;                                // of the bucket that is updated
  std::shared_ptr<int> evaluations_ = std::make_shared<int>(0);         // scopes that go on
  std::shared_ptr<void> without_gradients_ = std::make_shared<char>();  // others, that have a copy
};

}  // namespace distx::detail
