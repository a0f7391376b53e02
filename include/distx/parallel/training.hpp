// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <unordered_map>

#include "distx/parallel/agreement.hpp"
#include "distx/parallel/build.hpp"
#include "distx/parallel/gradient_norm.hpp"
#include "distx/parallel/uses.hpp"

namespace distx::detail {

/// What the policies of a training say, once their types are forgotten.
struct TrainingPolicies {
  int stage = 0;

  [[nodiscard]] std::string words() const { return "ZeRO<" + std::to_string(stage) + ">"; }
};

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
      : policies_(policies),
        options_(options),
        location_(location),
        wires_{comm.share(), comm.share(), std::move(comm)},
        entries_(std::move(entries)),
        uses_(entries_.size()) {
    guarded([&] { check(optimizer); });
    if (wires_.all.size() > 1) {
      Belief belief{{policies_.words() + ", " + options_.words() + ", " + optimizer.name}};
      for (const auto& entry : entries_) belief.lines.push_back(entry.words());
      demand_agreement(wires_.all, belief, context("DataParallel"));  // all ranks throw the same: nobody waits
    }
    guarded([&] { build(optimizer); });
  }
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;
  ~Training() {
    units_ = nullptr;  // scopes that are left do nothing from here on
    for (auto& entry : entries_) {
      if (!entry.owned) continue;
      auto& state = *entry.owned;
      state.in_training = false;
      state.open_gradient = nullptr;
      state.gradient = {};
      if (std::exchange(state.sharded, false)) {
        state.value = {};
        state.lost = true;
      }
    }
  }

  /// The first gradient of a step is zero.
  void touch(const void* identity, stream after) {
    guarded([&] {
      const std::size_t index = find(identity, "gradient");
      if (entries_[index].trained() && !std::exchange(uses_[index].touched, true))
        fill(after, bytes_of(entries_[index].gradient), std::byte{0});
    });
  }

  void ready(const void* identity, stream after) {
    guarded([&] {
      const std::size_t index = find(identity, "ready");
      const Entry<Space>& entry = entries_[index];
      if (phase_ != Phase::backward)
        fail("ready", "'" + entry.name + "' comes after reduce: call gather, or step, first", location_);
      if (!uses_.ready(index, entry, context("ready"))) return;
      if (entry.owned) {
        entry.owned->touch(after);
        entry.owned->sent = true;
      }
      reducer_->ready(bucket_of_[index], after, location_);
    });
  }

  void step(const StepOptions& options, stream after, const here& location) {
    guarded([&] {
      check_step(options, "step", location);
      launch(after, location);
      if (options_.clips()) finish_and_clip(after, location);
      check_scopes("step", location);
      for (std::size_t i = 0; i < reducer_->count(); ++i) {
        reducer_->finish(i, after);
        update_bucket(buckets_[i], options, after);
        if (gathers() && options_.overlap) buckets_[i].start_gather(wires_, entries_, after, location);
      }
      phase_ = Phase::updated;
      end_step(after, location);
    });
  }

  void reduce(stream after, const here& location) {
    guarded([&] {
      launch(after, location);
      if (options_.clips()) finish_and_clip(after, location);
      reducer_->finish_all(after);
      phase_ = Phase::reduced;
    });
  }

  void update(const StepOptions& options, stream after, const here& location) {
    guarded([&] {
      check_step(options, "update", location);
      if (phase_ != Phase::reduced) fail("update", "the gradients are not reduced: call reduce first", location);
      check_scopes("update", location);
      for (std::size_t i = 0; i < reducer_->count(); ++i) update_bucket(buckets_[i], options, after);
      phase_ = Phase::updated;
    });
  }

  void gather(stream after, const here& location) {
    guarded([&] {
      if (phase_ == Phase::backward) fail("gather", "the gradients are not reduced: call reduce first", location);
      check_scopes("gather", location);
      end_step(after, location);
    });
  }

  /// What this rank updates.
  [[nodiscard]] std::vector<Segment<Space>> owned(const here& location) {
    if (phase_ == Phase::backward)
      fail("owned", "the gradients are not reduced: call reduce first, and gather afterwards", location);
    std::vector<Segment<Space>> segments;
    each_segment(&Run<Space>::updated, [&](const auto& segment) { segments.push_back(segment); });
    return segments;
  }

  [[nodiscard]] std::size_t bucket_count() const noexcept { return reducer_->count(); }
  [[nodiscard]] double gradient_norm() const noexcept { return norm_; }
  [[nodiscard]] MemoryLedger memory() const { return account_->ledger(); }
  /// Null where weights are not sharded.
  [[nodiscard]] const std::shared_ptr<Units<Space>>& units() const noexcept { return units_; }
  /// Of a parameter's unit. @pre units() is not null
  [[nodiscard]] std::size_t unit_of(const void* identity) {
    std::size_t unit = 0;
    guarded([&] {
      const std::size_t index = find(identity, "unshard");
      unit = units_->unit_of(index);
      if (!Units<Space>::is_unit(unit))
        fail("unshard", "'" + entries_[index].name + "' is whole: its memory is the user's", location_);
    });
    return unit;
  }
  template <class F>
  void guarded(F&& f) {
    try {
      f();
    } catch (const std::exception& error) {
      wires_.all.revoke(error.what());
      if (split_) wires_.gathering.revoke(error.what());
      throw;
    } catch (...) {
      wires_.all.revoke("an exception that is no std::exception");
      if (split_) wires_.gathering.revoke("an exception that is no std::exception");
      throw;
    }
  }

 private:
  enum class Phase { backward, reduced, updated };

  [[nodiscard]] std::size_t find(const void* identity, const char* operation) const {
    const auto found = places_.find(identity);
    if (found == places_.end())
      fail(operation, "this is none of the training's parameters: pass the weights, or the Parameters, that it was "
                      "made of, and do not let a container move them", location_);
    return found->second;
  }
  /// Whether the ranks have updated different parts of weights that all of them hold.
  [[nodiscard]] bool gathers() const noexcept {
    return (policies_.stage == 1 || policies_.stage == 2) && wires_.parts() > 1;
  }

  void check(const AnyOptimizer<Space>& optimizer) {
    const ErrorContext in = context("DataParallel");
    optimizer.validate();
    if (options_.broadcast_from < 0 || options_.broadcast_from >= wires_.all.size())
      throw MismatchError(".broadcast_from = " + std::to_string(options_.broadcast_from) +
                              " is no rank: ranks are 0 to " + std::to_string(wires_.all.size() - 1),
                          in);
    if (!(options_.clip_norm > 0))
      throw MismatchError(".clip_norm = " + std::to_string(options_.clip_norm) +
                              ": it must be above 0; leave it out where nothing is to be clipped",
                          in);
    check_list(entries_, in);
    for (const auto& entry : entries_) {
      if (entry.options.group.weight_decay && !optimizer.decays)
        throw MismatchError("the group of '" + entry.name + "' sets .weight_decay, and the optimizer has none", in);
      if (policies_.stage >= 2 && !entry.owned && entry.trained())
        throw MismatchError("'" + entry.name + "' is borrowed, and " + policies_.words() +
                                " decides when a gradient has memory: make it a distx::Parameter, or name ZeRO<0> or "
                                "ZeRO<1>",
                            in);
    }
  }

  void build(const AnyOptimizer<Space>& optimizer) {
    const int stage = policies_.stage;
    if (stage == 3 && wires_.all.size() > 1) {
      wires_.gathering = wires_.all.split(0, wires_.all.rank());
      split_ = true;
    }
    lay_out_buckets(buckets_, entries_, wires_, stage, options_, location_);
    allocate_together([&] {
      allocate_shared(buckets_, wires_, stage, account_);
      const auto pool = [&](AnyCommunicator<Space>& comm, std::size_t bytes) {
        return std::make_unique<Pool<Space>>(
            account_, bytes == 0 ? nullptr : hold_shared(comm, account_, MemoryKind::in_flight, bytes));
      };
      if (stage >= 2) gradient_pool_ = pool(wires_.reducing, gradient_pool_bytes(buckets_));
      if (stage == 3)
        value_pool_ = pool(wires_.gathering, Units<Space>::pool_bytes(buckets_, entries_, options_.overlap));
    });
    allocate_together([&] { allocate_local(buckets_, stage, wires_.rank(), optimizer, account_); });
    reducer_ = std::make_unique<Reducer<Space>>(buckets_, entries_, wires_, stage, options_.overlap);
    if (stage == 3)
      units_ = std::make_shared<Units<Space>>(buckets_, entries_, wires_, *value_pool_, options_.overlap);
    set_values(buckets_, entries_, wires_, value_pool_.get(), options_.broadcast_from, location_);
    for (const auto& entry : entries_)
      if (!entry.owned && wires_.all.size() > 1)
        wires_.all.execute(Broadcast<AnyElement, Space>{entry.value, options_.broadcast_from, location_});
    claim();
  }

  /// Allocates on every rank or on none.
  /// @throws MemoryError, with what this rank holds so far, on every rank
  template <class F>
  void allocate_together(F&& f) {
    std::string words;
    try {
      f();
    } catch (const MemoryError& error) {
      words = error.what();
    } catch (const std::bad_alloc& error) {
      words = error.what();
    } catch (const RevokedError& error) {  // another rank could not have its part of a collective allocation
      throw MemoryError(std::string("a rank could not allocate: ") + error.what() + "; this rank holds " +
                            account_->ledger().words(),
                        context("DataParallel"));
    }
    std::uint8_t failed = words.empty() ? 0 : 1;
    if (wires_.all.size() > 1) all_reduce(wires_.all, Span<std::uint8_t, Space>(&failed, 1), max, location_);
    if (failed == 0) return;
    throw MemoryError((words.empty() ? "another rank could not allocate" : words) +
                          ": take a higher stage of ZeRO, more ranks or smaller buckets; this rank holds " +
                          account_->ledger().words(),
                      context("DataParallel"));
  }

  void claim() {
    bucket_of_.resize(entries_.size());
    for (std::size_t b = 0; b < buckets_.size(); ++b)
      for (const auto member : buckets_[b].members) bucket_of_[member] = b;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      auto& entry = entries_[i];
      places_.emplace(entry.owned ? static_cast<const void*>(entry.owned.get()) : entry.value.data(), i);
      if (!entry.owned) {
        account_->add(MemoryKind::weights, entry.buffer ? 0 : entry.bytes());
        account_->add(MemoryKind::gradients, entry.trained() ? entry.bytes() : 0);
        continue;
      }
      auto& state = *entry.owned;
      state.in_training = true;
      state.touched = state.sent = false;
      if (reducer_->lends() && entry.trained())
        state.open_gradient = [this, i](stream after) {
          guarded([&] { reducer_->open(bucket_of_[i], *gradient_pool_, after); });
        };
    }
  }

  /// Begins every reduction of the step.
  void launch(stream after, const here& location) {
    if (phase_ != Phase::backward)
      fail("reduce", "the gradients are reduced already: call update and gather next", location);
    uses_.demand_all(entries_, options_.allow_unused, context("reduce", location));
    if (options_.allow_unused) {
      for (std::size_t i = 0; i < entries_.size(); ++i) {
        const Entry<Space>& entry = entries_[i];
        if (!entry.trained() || uses_[i].ready > 0) continue;
        if (entry.owned) entry.owned->touch(after);
        else if (wires_.all.size() > 1) fill(after, bytes_of(entry.gradient), std::byte{0});
      }
      uses_.agree(wires_.all, location);
    }
    reducer_->launch_rest(after, location);
  }

  void finish_and_clip(stream after, const here& location) {
    reducer_->finish_all(after);
    std::vector<Segment<Space>> gradients;
    each_segment(&Run<Space>::kept, [&](const auto& segment) {
      if (!uses_[segment.parameter].skipped) gradients.push_back(segment);
    });
    const GradientExtent extent = extent_of(wires_.all, after, gradients, entries_.size(), location);
    if (extent.not_finite != GradientExtent::none)
      throw NonFiniteError("the gradient of '" + entries_[extent.not_finite].name +
                               "' is infinite or not a number, so that there is no norm to clip: lower the learning "
                               "rate, or look at what this step was fed",
                           context("step", location));
    norm_ = norm_of(wires_.all, after, gradients, extent.largest, location);
    if (norm_ <= options_.clip_norm) return;
    each_segment(&Run<Space>::updated, [&](const auto& segment) {
      with_type(segment.gradient, [&](auto values) { scale(after, values, options_.clip_norm / norm_); });
    });
  }

  void update_bucket(Bucket<Space>& bucket, const StepOptions& options, stream after) {
    for (const auto member : bucket.members)
      if (!uses_[member].skipped) ++uses_[member].updates;
    for (const auto& run : bucket.runs) {
      for (const auto& piece : run.updated) {
        if (uses_[piece.entry].skipped) continue;
        const Entry<Space>& entry = entries_[piece.entry];
        const auto& group = entry.options.group;
        const Step step{options.learning_rate * group.learning_rate_scale, uses_[piece.entry].updates,
                        group.weight_decay};
        const auto segment = run.segment(piece, entries_, wires_.rank());
        const std::size_t begin = policies_.stage == 0 ? 0 : run.layout.cut.begin(wires_.rank());
        bucket.update->update(after, step, segment.weight, segment.gradient,
                              {run.state_begin + piece.at - begin, piece.offset, entry.size(), entry.options.rows});
      }
    }
  }

  void end_step(stream after, const here& location) {
    if (gathers())
      for (std::size_t i = 0; i < reducer_->count(); ++i) {
        if (!buckets_[i].gathers() && options_.overlap) buckets_[i].start_gather(wires_, entries_, after, location);
        if (!options_.overlap) buckets_[i].execute_gather(wires_, entries_, after, location);
      }
    if (gathers())
      for (std::size_t i = 0; i < reducer_->count(); ++i) buckets_[i].finish_gather(entries_, after);
    reducer_->restart();
    uses_.restart();
    for (const auto& entry : entries_)
      if (entry.owned) entry.owned->touched = entry.owned->sent = false;
    if (units_ != nullptr) units_->restart(after);
    phase_ = Phase::backward;
  }

  void check_step(const StepOptions& options, const char* operation, const here& location) {
    if (std::isnan(options.learning_rate))
      fail(operation, "the learning rate is not a number: pass one, {.learning_rate = 1e-3} say", location);
    if (!std::isfinite(options.learning_rate) || options.learning_rate < 0)
      fail(operation, "the learning rate is " + std::to_string(options.learning_rate) +
                          ": it must be finite and at least 0", location);
  }
  void check_scopes(const char* operation, const here& location) {
    if (units_ == nullptr) return;
    if (const std::string* unit = units_->held(); unit != nullptr)
      fail(operation, "the weights of '" + *unit + "' are unsharded, and would be out of date: let the scope of "
                      "unshard end first", location);
  }

  template <class F>
  void each_segment(std::vector<Piece> Run<Space>::*pieces, F&& f) {
    for (std::size_t i = 0; i < reducer_->count(); ++i)
      for (const auto& run : buckets_[i].runs)
        for (const auto& piece : run.*pieces) f(run.segment(piece, entries_, wires_.rank()));
  }

  [[nodiscard]] ErrorContext context(std::string_view operation) const { return context(operation, location_); }
  [[nodiscard]] ErrorContext context(std::string_view operation, const here& location) const {
    return {operation, wires_.all.backend(), wires_.all.rank(), wires_.all.size(), location};
  }
  [[noreturn]] void fail(const char* operation, const std::string& words, const here& location) const {
    throw MismatchError(words, context(operation, location));
  }

  TrainingPolicies policies_;
  DataParallelOptions options_;
  here location_;
  Wires<Space> wires_;
  bool split_ = false;  // gathering is a communicator of its own
  std::vector<Entry<Space>> entries_;
  Uses<Space> uses_;
  std::shared_ptr<MemoryAccount> account_ = std::make_shared<MemoryAccount>();
  std::unordered_map<const void*, std::size_t> places_;
  std::vector<std::size_t> bucket_of_;
  std::unique_ptr<Pool<Space>> gradient_pool_;  // before the buckets, which borrow from them
  std::unique_ptr<Pool<Space>> value_pool_;
  Buckets<Space> buckets_;
  std::unique_ptr<Reducer<Space>> reducer_;
  std::shared_ptr<Units<Space>> units_;
  Phase phase_ = Phase::backward;
  double norm_ = 0;
};

}  // namespace distx::detail
