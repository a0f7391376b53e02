// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/detail/engine/divergence_guard.hpp"
#include "distx/parallel/detail/engine/gradient_reducer.hpp"
#include "distx/parallel/detail/engine/gradient_scaling.hpp"
#include "distx/parallel/detail/engine/list_state.hpp"
#include "distx/parallel/detail/engine/recovery.hpp"
#include "distx/parallel/detail/engine/step_capture.hpp"
#include "distx/parallel/detail/engine/step_join.hpp"
#include "distx/parallel/detail/engine/step_options_check.hpp"
#include "distx/parallel/detail/engine/step_state.hpp"
#include "distx/parallel/detail/engine/training_buckets.hpp"
#include "distx/parallel/unsharded.hpp"

namespace distx::detail {

/// What DataParallel does, for one memory space, with communicator, optimizer and element types erased.
///
/// Every call checks the state of the step first. An error on this rank revokes the communicators before it leaves the
/// call, so that no peer waits for this rank.
template <MemorySpace Space>
class TrainingEngine {
 public:
  using stream = typename Space::stream;
  using here = std::source_location;

  TrainingEngine(AnyCommunicator<Space> comm, std::vector<ParameterEntry<Space>> entries,
                 const AnyOptimizer<Space>& optimizer, const TrainingPolicies& policies,
                 const DataParallelOptions& options, const here& location)
      : policies_(policies),
        options_(options),
        location_(location),
        comms_(std::move(comm)),
        parameters_(std::move(entries)),
        buckets_(make_training_buckets(parameters_, comms_, optimizer, policies, options, location)),
        reducer_(buckets_.all(), parameters_, comms_, policies, buckets_.gradient_pool(), options.overlap,
                 options.allow_unused),
        shards_(buckets_.all(), parameters_, comms_, policies, options.overlap),
        scaling_(options, parameters_.scales_loss(policies)),
        guard_(options.guard_every) {
    if (policies.stage == 3)
      gatherer_ = std::make_shared<WeightGatherer<Space>>(buckets_.all(), parameters_, comms_, buckets_.value_pool(),
                                                          options.overlap);
    parameters_.claim(reducer_.lends() || !done_at_return<Space>, [this](std::size_t index, stream after) {
      const Guard guard(device_);
      return comms_.guard([&] {
        calls_.enter(after);
        return reducer_.open(index, after);
      });
    });
  }
  TrainingEngine(const TrainingEngine&) = delete;
  TrainingEngine& operator=(const TrainingEngine&) = delete;
  ~TrainingEngine() {
    const Guard guard(device_);
    parameters_.release();
    reducer_.abandon();
    shards_.abandon();
    if (gatherer_ != nullptr) gatherer_->abandon();
    try {
      synchronize_all<Space>();  // enqueued work may use memory that is freed now
    } catch (...) {              // a broken device does no work
    }
  }

  using Guard = typename CurrentDevice<Space>::Guard;
  /// Makes the training's device current on this thread until the scope ends.
  [[nodiscard]] Guard on_device() const { return Guard(device_); }

  /// Checks that gradients can be requested now.
  void check_gradient() {
    comms_.guard([&] { check(StepCall::gradient, "gradient", location_); });
  }
  /// Zeroes a borrowed gradient when it is first requested in a step.
  void request_gradient(const void* identity, stream after) {
    const Guard guard(device_);
    try {
      check(StepCall::gradient, "gradient", location_);
      calls_.enter(after);
      const std::size_t index = parameters_.index_of(identity, context("gradient", location_));
      parameters_.steps().check_writable(index, parameters_[index], context("gradient", location_));
      auto& step = parameters_.steps()[index];
      if (std::exchange(step.requested, true)) return order<Space>(step.zeroed_on, after);
      step.zeroed_on = after;
      fill(after, bytes_of(parameters_[index].gradient), std::byte{0});
    } catch (...) {
      comms_.revoke_and_rethrow();
    }
  }
  void ready(const void* identity, stream after, const here& location) {
    const Guard guard(device_);
    try {
      check(StepCall::ready, "ready", location);
      const flight::Label label({.step = steps_, .phase = "ready"});
      calls_.enter(after);
      const std::size_t index = parameters_.index_of(identity, context("ready", location));
      make_ready(index, after, location);
    } catch (const RevokedError&) {
      explain_revocation(location);
    } catch (...) {
      comms_.revoke_and_rethrow();
    }
  }

  void begin_micro_batch(bool last, stream after, const here& location) {
    call(StepCall::micro_batch, "micro_batch", after, location, [&] {
      if (policies_.accumulation == Accumulation::sharded)
        announce(last ? JoinedCall::last_micro_batch : JoinedCall::micro_batch, 0, location);
      if (state_.begin_micro_batch(last)) end_micro_batch(after, location);
    });
  }
  /// Returns the number of ranks that have a batch in the next step; the others take part with gradients of zero.
  int join(bool has_batch, stream after, const here& location) {
    int active = 0;
    call(StepCall::between_steps, "join", after, location, [&] {
      check_no_scope("join", location);
      if (state_.accumulates()) fail(StepFault::step_in_progress, "join", location);
      active = join_.begin(comms_, has_batch, policies_.stage == 3 || policies_.accumulation == Accumulation::sharded,
                           location);
      state_.set_idle(join_.idle());
      if (!join_.uneven()) return;
      if (gatherer_ != nullptr) gatherer_->stop_prefetching(after);
      // A gradient's memory is taken before `ready` is announced: then no rank may wait for the groups.
      if (gatherer_ != nullptr && policies_.hybrid) reducer_.postpone();
      if (options_.average_over_active) scaling_.weigh(static_cast<double>(comms_.all().size()) / active);
    });
    return active;
  }
  void step(const StepOptions& options, stream after, const here& location) {
    call(StepCall::step, "step", after, location, [&] {
      step_options_.check(options, scaling_.scaler().on(), context("step", location));
      end_joined_calls(after, location);
      start_reductions(after, location);
      try {
        if (!capture_.recording()) step_options_.note(comms_.all(), options, context("step", location));
      } catch (const RevokedError&) {
        reducer_.explain();
      }
      std::optional<GradientFactor> factor;
      if (scaling_.inspects()) {
        reducer_.finish_all(after);
        factor = scaling_.enqueue(parameters_, shards_, comms_.reducing(), after, location);
        if (!factor) inspect(after, location);
      }
      check_no_scope("step", location);
      for (std::size_t i = 0; i < reducer_.count() && !state_.skipped(); ++i) {
        reducer_.finish(i, after);
        shards_.update(i, options, factor.value_or(GradientFactor{scaling_.factor()}), !factor, after, location);
        shards_.start_gather(i, after, location);
      }
      reducer_.finish_all(after);
      end_step(after, location);
    });
  }
  void reduce(stream after, const here& location) {
    call(StepCall::reduce, "reduce", after, location, [&] {
      end_joined_calls(after, location);
      start_reductions(after, location);
      if (scaling_.inspects()) inspect(after, location);
      reducer_.finish_all(after);
      state_.reduced();
    });
  }
  void update(const StepOptions& options, stream after, const here& location) {
    call(StepCall::update, "update", after, location, [&] {
      step_options_.check(options, scaling_.scaler().on(), context("update", location));
      step_options_.note(comms_.all(), options, context("update", location));
      check_no_scope("update", location);
      for (std::size_t i = 0; i < reducer_.count() && !state_.skipped(); ++i)
        shards_.update(i, options, {scaling_.factor()}, true, after, location);
      state_.updated();
    });
  }
  void gather(stream after, const here& location) {
    call(StepCall::gather, "gather", after, location, [&] {
      check_no_scope("gather", location);
      end_step(after, location);
    });
  }

  /// Returns what this rank updates in this step.
  [[nodiscard]] std::vector<Segment<Space>> owned(const here& location) {
    check(StepCall::owned, "owned", location);
    return state_.skipped() ? std::vector<Segment<Space>>() : shards_.segments(scaling_.factor());
  }

  /// Calls f(name, values) for every parameter with its whole values, in the order of the list.
  void for_each_full_weight(const std::function<void(const std::string&, Span<const AnyElement, Space>)>& f,
                            stream after, const here& location) {
    call(StepCall::between_steps, "for_each_full_weight", after, location, [&] {
      step_options_.compare(comms_.all(), context("for_each_full_weight", location));
      Unsharded<Space> scope;  // of the unit of the last parameter
      for (std::size_t i = 0; i < parameters_.size(); ++i) {
        if (parameters_[i].buffer) continue;
        if (gatherer_ != nullptr) scope.hold_only(gatherer_, gatherer_->unit_of(i), after, location);
        f(parameters_[i].name, parameters_[i].value_now());
      }
    });
  }
  /// Ends the training; owned parameters keep whole weights.
  void release(stream after, const here& location) {
    call(StepCall::between_steps, "release", after, location, [&] {
      check_no_scope("release", location);
      if (state_.swapped_in()) fail(StepFault::average_swapped_in, "release", location);
      step_options_.compare(comms_.all(), context("release", location));
      if (gatherer_ != nullptr) gatherer_->make_whole(account(), after, location);
      parameters_.release();
      state_.release();
    });
  }

  /// @name For ExponentialAverage
  /// @{
  /// Runs `change`, which changes what this rank updates, and gathers the weights of all ranks.
  template <class F>
  void change_values(stream after, const here& location, F&& change) {
    call(StepCall::between_steps, "swap_in", after, location, [&] {
      check_no_scope("swap_in", location);
      if (gatherer_ != nullptr) gatherer_->invalidate(after);
      change();
      shards_.gather(after, location);
    });
  }
  /// Runs `f`, ordered between the other calls of the training.
  template <class F>
  void ordered(stream after, F&& f) {
    const Guard guard(device_);
    comms_.guard([&] {
      calls_.enter(after);
      f();
      calls_.leave(after);
    });
  }
  /// @throws InvalidArgument with the text that `message()` returns, unless `valid`
  template <class Message>
  void check_argument(bool valid, const char* operation, const here& location, Message&& message) {
    if (!valid) comms_.guard([&] { throw InvalidArgument(message(), context(operation, location)); });
  }
  [[nodiscard]] const OptimizerShards<Space>& shards() const noexcept { return shards_; }
  [[nodiscard]] const std::shared_ptr<MemoryAccount>& account() const noexcept { return buckets_.account(); }
  [[nodiscard]] std::size_t parameter_count() const noexcept { return parameters_.size(); }
  void add_average(std::weak_ptr<AverageValues<Space>> average) { averages_.add(std::move(average)); }
  [[nodiscard]] const std::shared_ptr<void>& swap_token() const noexcept { return state_.swap_token(); }
  [[nodiscard]] const here& location() const noexcept { return location_; }
  /// @}

  /// @name For checkpoints and Replicate
  /// @{
  /// Returns the state between two steps, also an incomplete one. Local. @throws InvalidState like DataParallel::state
  [[nodiscard]] TrainingState<Space> state(const here& location) {
    check_resumable(StepCall::load, "state", location);
    return state_now();
  }
  /// Runs `change`, which overwrites arrays of `state()`, all of them if `which` is `load`, and sets the counters.
  /// Every rank calls it. If `change` returns false on every rank, the state is incomplete, and only `load` is legal.
  template <class F>
  void restore(StepCall which, const TrainingCounters& counters, stream after, const here& location, F&& change) {
    call(which, "load", after, location, [&] {
      check_resumable(which, "load", location);
      check_no_scope("load", location);
      if (gatherer_ != nullptr) gatherer_->invalidate(after);
      state_.set_incomplete(true);
      if (!change()) return;
      state_.set_incomplete(false);
      restore_counters(parameters_, scaling_.scaler(), counters);
      commit(after, location);
    });
  }
  /// @throws InvalidState if the state is incomplete, or during a step
  void check_savable(const here& location) const { check(StepCall::between_steps, "save", location); }
  /// Describes the parameters as parts of distributed ones.
  void describe_parts(std::vector<TensorPart> parts) { parts_ = std::move(parts); }
  [[nodiscard]] AnyCommunicator<Space>& communicator() noexcept { return comms_.all(); }
  /// Returns memory of any type that checkpoints keep from one save to the next.
  [[nodiscard]] std::shared_ptr<void>& checkpoint_memory() noexcept { return checkpoint_memory_; }
  [[nodiscard]] const TrainingPolicies& policies() const noexcept { return policies_; }
  /// Begins to keep copies of the state: the present one, or that of an earlier training. Collective.
  void replicate(const Recovery<Space>* earlier, const here& location) {
    comms_.guard([&] {
      replicas_ =
          std::make_unique<Replicas<Space>>(comms_.all(), state_now(), policies_.stage == 0,
                                            earlier == nullptr ? 0 : earlier->version().number, account(), location);
      if (earlier == nullptr) return commit({}, location);
      steps_ = earlier->version().steps;
      const auto copy = [&] { return earlier->copy_to(comms_.all(), state_now(), location), true; };
      restore(StepCall::load, earlier->version().counters, {}, location, copy);
    });
  }
  /// Ends the training after a failure, and returns its copies of the state; null if it has none. Local.
  [[nodiscard]] std::unique_ptr<Replicas<Space>> take_replicas() {
    if (replicas_ != nullptr) replicas_->capture(state_now(), {});
    return std::move(replicas_);
  }
  /// @}

  [[nodiscard]] bool shards_weights() const noexcept { return gatherer_ != nullptr; }
  /// Makes the unit of an owned parameter whole until `scope` ends. @pre shards_weights()
  void unshard(Unsharded<Space>& scope, const void* identity, stream after, const here& location) {
    const Guard guard(device_);
    comms_.guard([&] {
      check(StepCall::unshard, "unshard", location);
      const flight::Label label({.step = steps_, .phase = "unshard"});
      calls_.enter(after);
      const auto unit = gatherer_->unit_of(parameters_.index_of(identity, context("unshard", location)));
      if (!unit) return;
      try {
        if (join_.announces() && !gatherer_->unsharded(*unit)) {
          if (*state_.evaluations() > 0) fail(StepFault::evaluation_in_uneven_step, "unshard", location);
          announce(JoinedCall::unshard, *unit, location);
        }
        scope.hold(gatherer_, *unit, after, location);
      } catch (const RevokedError&) {
        explain_revocation(location);
      }
    });
  }
  [[nodiscard]] Evaluation<Space> evaluate() { return {state_.evaluations(), gatherer_}; }
  /// Extends the norm to the parameters of the ranks of `others`. Collective over `others`.
  void extend_norm(AnyCommunicator<Space> others, std::vector<bool> counts) {
    scaling_.extend(std::move(others), std::move(counts), location_);
  }
  [[nodiscard]] StepCapture<Space>& captured_step() noexcept { return capture_; }
  [[nodiscard]] std::size_t bucket_count() const noexcept { return reducer_.count(); }
  [[nodiscard]] double gradient_norm() const { return scaling_.norm(); }
  [[nodiscard]] const LossScaler& scaler() const noexcept { return scaling_.scaler(); }
  [[nodiscard]] observe::MemoryLedger memory() const { return account()->ledger(); }

 private:
  friend class StepCapture<Space>;
  /// Makes a call that concerns all of the training.
  template <class F>
  void call(StepCall which, const char* operation, stream after, const here& location, F&& f) {
    const Guard guard(device_);
    comms_.guard([&] {
      check(which, operation, location);
      capture_.check(which, after, context(operation, location));
      const flight::Label label({.step = steps_, .phase = operation});
      try {
        settle(location);
        calls_.enter(after);
        f();
        calls_.leave(after);
      } catch (const RevokedError&) {
        explain_revocation(location);
      }
    });
  }
  /// Throws the error of the last step that the GPU has found since.
  void settle(const here& location) { scaling_.settle(parameters_, context("step", location)); }
  /// Rethrows the revocation that is being handled; if it follows from gradients of the last step that are not finite,
  /// as every rank finds for itself, throws the error of that step.
  [[noreturn]] void explain_revocation(const here& location) {
    try {
      settle(location);
    } catch (...) {
      comms_.revoke_and_rethrow();
    }
    comms_.revoke_and_rethrow();
  }
  void check(StepCall which, const char* operation, const here& location) const {
    if (const StepFault fault = state_.fault(which, reducer_.started()); fault != StepFault::none)
      fail(fault, operation, location);
  }
  [[noreturn]] void fail(StepFault fault, const char* operation, const here& location,
                         std::string_view subject = {}) const {
    throw InvalidState(message_of(fault, subject), context(operation, location));
  }
  [[nodiscard]] ErrorContext context(std::string_view operation, const here& location) const {
    const auto& comm = comms_.all();
    return {operation, comm.backend(), comm.rank(), comm.size(), location};
  }
  void check_resumable(StepCall which, const char* operation, const here& location) {
    check(which, operation, location);
    comms_.guard([&] { settle(location); });
    check_no_gradients(operation, location);
    if (state_.swapped_in()) fail(StepFault::average_swapped_in, operation, location);
  }
  void check_no_gradients(const char* operation, const here& location) const {
    if (state_.accumulates() || parameters_.steps().has_gradients(parameters_.entries()))
      fail(StepFault::gradients_unsaved, operation, location);
  }
  void check_no_scope(const char* operation, const here& location) const {
    if (gatherer_ == nullptr) return;
    if (const std::string* unit = gatherer_->unsharded(); unit != nullptr)
      fail(StepFault::weights_unsharded, operation, location, *unit);
  }

  [[nodiscard]] TrainingState<Space> state_now() {
    return {StateLister<Space>(buckets_.all(), parameters_, comms_, parts_, averages_.living()).arrays(),
            counters_of(parameters_, scaling_.scaler())};
  }
  /// Makes the present state the version from which survivors continue.
  void commit(stream after, const here& location) {
    if (replicas_) replicas_->commit(comms_.all(), state_now(), steps_, after, location);
  }

  void make_ready(std::size_t index, stream after, const here& location) {
    const auto& entry = parameters_[index];
    const bool last_use = parameters_.steps().ready(index, entry, context("ready", location));
    if (!join_.idle() && reducer_.compares_order()) announce(JoinedCall::ready, index, location);
    reducer_.written_on(index, after);  // by this use, whichever micro-batch sends it
    if (!last_use) return;
    if (entry.owned) {
      entry.owned->prepare_gradient(after);
      entry.owned->sent = true;
    }
    if (guard_.checks(steps_) && !scaling_.scaler().on())
      guard_.check_gradient(entry, steps_, after, context("ready", location));
    if (state_.in_last_micro_batch() || policies_.accumulation == Accumulation::sharded)
      reducer_.ready(index, after, location);
  }
  /// Announces a call to the ranks without a batch, if there are any and they need it.
  void announce(JoinedCall which, std::size_t index, const here& location) {
    if (join_.announces()) join_.announce(comms_, {which, index}, location);
  }
  /// On a rank without a batch: makes the calls that the ranks with a batch announce, until these end the step.
  void end_joined_calls(stream after, const here& location) {
    if (!join_.idle()) return announce(JoinedCall::end, 0, location);
    join_.follow(comms_, location, [&](JoinedCall which, std::size_t index) {
      if (which == JoinedCall::unshard) {
        Unsharded<Space>().hold(gatherer_, index, after, location);
      } else if (which == JoinedCall::ready) {
        make_ready(index, after, location);
      } else {
        if (state_.begin_micro_batch(which == JoinedCall::last_micro_batch)) end_micro_batch(after, location);
        // Below stage 3 the other ranks may wait for these in ready, until their gradients have memory.
        if (policies_.stage == 2) start_rest(after, location);
      }
    });
  }
  void end_micro_batch(stream after, const here& location) {
    const bool sharded = policies_.accumulation == Accumulation::sharded;
    check_complete("micro_batch", location);
    if (sharded) {
      start_rest(after, location);
      reducer_.finish_all(after);
    }
    reducer_.restart(true);
    parameters_.begin_micro_batch(sharded);
  }
  void start_reductions(stream after, const here& location) {
    check_complete("reduce", location);
    start_rest(after, location);
    // After all reductions: a peer may wait for one of these before it joins this call.
    if (options_.allow_unused) parameters_.steps().agree_on_unused(comms_.all(), location);
  }
  void check_complete(const char* operation, const here& location) const {
    if (!join_.idle())
      parameters_.steps().check_complete(parameters_.entries(), options_.allow_unused, context(operation, location));
  }
  void start_rest(stream after, const here& location) {
    reducer_.start_rest(after, location, [&](std::size_t index) {
      if (options_.allow_unused || join_.idle()) parameters_.zero_unused(index, policies_, comms_.all().size(), after);
    });
  }
  void inspect(stream after, const here& location) {
    reducer_.finish_all(after);
    if (!scaling_.apply(parameters_, shards_, comms_.reducing(), after, context("step", location))) state_.skip();
  }
  void end_step(stream after, const here& location) {
    shards_.gather(after, location);
    reducer_.restart(false);
    parameters_.begin_step();
    scaling_.begin_step();
    join_.end_step();
    if (gatherer_ != nullptr) gatherer_->restart(after);
    if (guard_.checks(steps_))
      guard_.check_weights(parameters_, shards_, comms_, shards_weights(), steps_, after, context("step", location));
    state_.finish();
    ++steps_;
    commit(after, location);
  }

  CurrentDevice<Space> device_{};  // of the constructor, for calls of threads where another one is current
  TrainingPolicies policies_;
  DataParallelOptions options_;
  here location_;  // where the training was made
  TrainingCommunicators<Space> comms_;
  ParameterStore<Space> parameters_;
  TrainingBuckets<Space> buckets_;
  GradientReducer<Space> reducer_;
  OptimizerShards<Space> shards_;
  GradientScaling<Space> scaling_;
  DivergenceGuard<Space> guard_;
  std::shared_ptr<WeightGatherer<Space>> gatherer_{};  // null below stage 3
  StepState state_{};
  StepJoin<Space> join_{};
  StepOptionsCheck<Space> step_options_{};
  CallOrder<Space> calls_{};
  std::vector<TensorPart> parts_{};              // empty without a mesh
  std::int64_t steps_ = 0;                       // that have ended
  std::unique_ptr<Replicas<Space>> replicas_{};  // null without Replicate
  std::shared_ptr<void> checkpoint_memory_{};
  LivingAverages<Space> averages_{};
  StepCapture<Space> capture_{};  // last: its graph is destroyed before the communicators
};

}  // namespace distx::detail
