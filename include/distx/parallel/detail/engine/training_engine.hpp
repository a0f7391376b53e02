// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/detail/engine/checks/check_training.hpp"
#include "distx/parallel/detail/engine/checks/divergence_guard.hpp"
#include "distx/parallel/detail/engine/engine_interface.hpp"
#include "distx/parallel/detail/engine/state/list_state.hpp"
#include "distx/parallel/detail/engine/state/recovery.hpp"
#include "distx/parallel/detail/engine/step/gradient_reducer.hpp"
#include "distx/parallel/detail/engine/step/gradient_scaling.hpp"
#include "distx/parallel/detail/engine/step/step_capture.hpp"
#include "distx/parallel/detail/engine/step/step_join.hpp"
#include "distx/parallel/detail/engine/step/step_state.hpp"
#include "distx/parallel/detail/engine/training_buckets.hpp"

namespace distx::inline DISTX_ABI::detail {

/// What DataParallel does, for one memory space, with communicator, optimizer and element types erased.
///
/// Every call checks the state of the step first. An error on this rank revokes the communicators before it leaves the
/// call, so that no peer waits for this rank.
template <MemorySpace Space>
class TrainingEngine final : public TrainingCalls<Space> {
 public:
  using typename TrainingCalls<Space>::stream;
  using typename TrainingCalls<Space>::here;
  using typename TrainingCalls<Space>::Guard;

  TrainingEngine(AnyCommunicator<Space> comm, std::vector<ParameterEntry<Space>> entries,
                 const AnyOptimizer<Space>& optimizer, const TrainingPolicies& policies,
                 const DataParallelOptions& options, const here& location);
  ~TrainingEngine() override;

  [[nodiscard]] Guard check_gradient() override {
    guard([&] { check(StepCall::gradient, "gradient", location_); });
    return Guard(device_);
  }
  void request_gradient(const void* identity, stream after) override {
    const Guard on(device_);
    guard([&] {
      check(StepCall::gradient, "gradient", location_);
      calls_.enter(after);
      const std::size_t index = parameters_.index_of(identity, context("gradient", location_));
      parameters_.steps().check_writable(index, parameters_[index], context("gradient", location_));
      auto& step = parameters_.steps()[index];
      if (std::exchange(step.requested, true)) return order<Space>(step.zeroed_on, after);
      step.zeroed_on = after;
      fill(after, bytes_of(parameters_[index].gradient), std::byte{0});
    });
  }
  void ready(const void* identity, stream after, const here& location) override {
    const Guard on(device_);
    try {
      check(StepCall::ready, "ready", location);
      const flight::Label label({.step = steps_, .phase = "ready"});
      calls_.enter(after);
      const std::size_t index = parameters_.index_of(identity, context("ready", location));
      make_ready(index, after, location);
    } catch (const RevokedError&) {
      explain_revocation(location);
    } catch (...) {
      end_and_rethrow();
    }
  }
  [[nodiscard]] bool shards_weights() const noexcept override { return gatherer_ != nullptr; }
  void unshard(Unsharded<Space>& scope, const void* identity, stream after, const here& location) override {
    const Guard on(device_);
    guard([&] {
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
  [[nodiscard]] Evaluation<Space> evaluate() override { return {state_.evaluations(), gatherer_}; }

  void begin_micro_batch(const MicroBatchIndex& which, stream after, const here& location) override {
    call(StepCall::micro_batch, "micro_batch", after, location, [&] {
      check_order(which, location);
      const bool last = which.index + 1 == which.count;
      if (policies_.accumulation == Accumulation::sharded)
        announce(last ? JoinedCall::last_micro_batch : JoinedCall::micro_batch, 0, location);
      if (state_.begin_micro_batch(last, which.count)) end_micro_batch(after, location);
    });
  }
  [[nodiscard]] int announce_batch(bool has_batch, stream after, const here& location) override {
    int active = 0;
    call(StepCall::between_steps, "announce_batch", after, location, [&] {
      check_no_scope("announce_batch", location);
      if (state_.accumulates()) fail(StepFault::step_in_progress, "announce_batch", location);
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
  void step(const StepOptions& options, stream after, const here& location) override {
    call(StepCall::step, "step", after, location, [&] {
      step_options_.check(options, scaling_.skips(), context("step", location));
      end_joined_calls(after, location);
      start_reductions(after, location);
      try {
        if (!capture_.recording()) note(options, context("step", location));
      } catch (const Error&) {
        reducer_.explain();
      }
      if (scaling_.inspects()) {
        reducer_.finish_all(after);
        if (!scaling_.enqueue(parameters_, shards_, comms_.reducing(), after, location))
          inspect(is_finite(options.loss), after, location);
      }
      await_readers("step", after, location);
      const bool together = shards_.update_together();
      for (std::size_t i = 0; i < reducer_.count() && !state_.skipped() && !together; ++i) {
        if (!scaling_.inspects() && reducer_.in_one_pass(i)) {
          shards_.update_in_one_pass(i, options, after, location,
                                     [&](auto& update) { reducer_.finish(i, after, &update); });
        } else {
          reducer_.finish(i, after);
          shards_.update(i, options, scaling_.factor(), after, location);
        }
        shards_.start_gather(i, after, location);
      }
      reducer_.finish_all(after);
      if (together && !state_.skipped()) shards_.update_all(options, scaling_.factor(), after, location);
      end_step(after, location);
    });
  }
  void capture(const std::function<void()>& f, stream after, const here& location) override {
    if constexpr (CapturedWork<Space>::available) capture_.record(*this, f, after, location);
  }
  void replay(const StepOptions& options, stream after, const here& location) override {
    if constexpr (CapturedWork<Space>::available) capture_.replay(*this, options, after, location);
  }
  void reduce_gradients(stream after, const here& location) override {
    call(StepCall::reduce_gradients, "reduce_gradients", after, location, [&] {
      end_joined_calls(after, location);
      start_reductions(after, location);
      if (scaling_.inspects()) inspect(true, after, location);
      reducer_.finish_all(after);
      await_readers("reduce_gradients", after, location);
      state_.reduced();
    });
  }
  void update_weights(const StepOptions& options, stream after, const here& location) override {
    call(StepCall::update_weights, "update_weights", after, location, [&] {
      step_options_.check(options, scaling_.skips(), context("update_weights", location));
      note(options, context("update_weights", location));
      if (!state_.skipped() && scaling_.skips_loss(is_finite(options.loss), comms_, location)) state_.skip();
      await_readers("update_weights", after, location);
      const bool together = shards_.update_together();
      for (std::size_t i = 0; i < reducer_.count() && !state_.skipped() && !together; ++i)
        shards_.update(i, options, scaling_.factor(), after, location);
      if (together && !state_.skipped()) shards_.update_all(options, scaling_.factor(), after, location);
      state_.updated();
    });
  }
  void gather_weights(stream after, const here& location) override {
    call(StepCall::gather_weights, "gather_weights", after, location, [&] {
      check_no_scope("gather_weights", location);
      end_step(after, location);
    });
  }
  [[nodiscard]] std::vector<Fragment<Space>> owned(const here& location) override {
    return guard([&] {
      check(StepCall::owned, "owned", location);
      std::vector<Fragment<Space>> fragments;
      if (!state_.skipped()) fragments = shards_.fragments(scaling_.factor().value);
      if (!present_.empty())
        for (auto& fragment : fragments) fragment.parameter = present_[fragment.parameter];
      return fragments;
    });
  }
  void for_each_full_weight(const ParameterVisitor<Space>& f, stream after, const here& location) override {
    call(StepCall::between_steps, "for_each_full_weight", after, location, [&] {
      step_options_.compare(comms_.all(), context("for_each_full_weight", location));
      const bool exactly = policies_.weight_hook != nullptr;
      if (exactly) {
        check_no_scope("for_each_full_weight", location, StepFault::weights_encoded);
        gatherer_->gather_exactly(true, after);
      }
      Unsharded<Space> scope;  // of the unit of the last parameter
      const auto values_of = [&](std::size_t i) -> Span<const AnyElement, Space> {
        if (gatherer_ != nullptr) scope.hold_only(gatherer_, gatherer_->unit_of(i), after, location);
        return parameters_[i].value_now();
      };
      if (mesh_.pass_whole != nullptr) {
        std::size_t next = 0;
        mesh_.pass_whole(mesh_, [&] { return values_of(next++); }, f, after, location);
      } else {
        for (std::size_t i = 0; i < parameters_.size(); ++i)
          if (!parameters_[i].buffer) f(parameters_[i].name, values_of(i));
      }
      scope = {};
      if (exactly) gatherer_->gather_exactly(false, after);
    });
  }
  void release(stream after, const here& location) override {
    call(StepCall::between_steps, "release", after, location, [&] {
      check_no_scope("release", location);
      if (state_.swapped_in()) fail(StepFault::average_swapped_in, "release", location);
      step_options_.compare(comms_.all(), context("release", location));
      if (gatherer_ != nullptr) gatherer_->make_whole(account(), after, location);
      if (buckets_.shares_weights())
        copy_whole_values(buckets_.all(), parameters_.entries(), account(), after, [](auto&, auto&& copy) { copy(); });
      parameters_.release();
      state_.release();
    });
  }
  [[nodiscard]] TrainingState<Space> state(const here& location) override {
    check_resumable(StepCall::load, "state", location);
    auto state = state_now(parts_);
    if (mesh_.add_empty != nullptr) mesh_.add_empty(state, mesh_.parameters, living(averages_).size());
    return state;
  }
  [[nodiscard]] double gradient_norm() const override { return scaling_.norm(); }
  [[nodiscard]] double loss_scale() const override { return scaling_.scaler().scale(); }
  [[nodiscard]] std::uint64_t skipped_steps() const override { return scaling_.scaler().skipped(); }
  [[nodiscard]] const std::shared_ptr<MemoryAccount>& account() const noexcept override { return buckets_.account(); }
  [[nodiscard]] std::size_t bucket_count() const noexcept override { return reducer_.count(); }

  [[nodiscard]] const here& location() const noexcept override { return location_; }
  [[nodiscard]] const TrainingPolicies& policies() const noexcept override { return policies_; }
  [[nodiscard]] AnyCommunicator<Space>& communicator() noexcept override { return comms_.all(); }

  void ordered(stream after, const std::function<void()>& f) override {
    const Guard on(device_);
    guard([&] {
      calls_.enter(after);
      f();
      calls_.leave(after);
    });
  }
  void restore(StepCall which, const TrainingCounters& counters, stream after, const here& location,
               const std::function<bool()>& change) override {
    call(which, "load", after, location, [&] {
      check_resumable(which, "load", location);
      await_readers("load", after, location);
      state_.set_incomplete(true);
      if (!change()) return;
      buckets_.gather_on_hosts(parameters_.entries(), comms_, after, location);
      await_others(location);
      state_.set_incomplete(false);
      restore_counters(parameters_, scaling_.scaler(), counters);
      reducer_.forget();
      commit(after, location);
    });
  }
  void check_savable(const here& location) override {
    check(StepCall::between_steps, "save", location);
    step_options_.compare(comms_.all(), context("save", location));
  }
  [[nodiscard]] std::shared_ptr<void>& checkpoint_memory() noexcept override { return checkpoint_memory_; }

  /// @name Not virtual: for MeshParallel, Replicate and ExponentialAverage, which few programs use
  /// @{
  void join_mesh(TrainingMesh<Space> mesh);
  std::uint64_t replicate(KeptReplicas<Space>& kept, const here& location);
  /// Runs `change`, which changes what this rank updates, and gathers the weights of all ranks.
  template <class F>
  void change_values(stream after, const here& location, F&& change) {
    call(StepCall::between_steps, "swap_in", after, location, [&] {
      await_readers("swap_in", after, location);
      change();
      shards_.gather(after, location);
      await_others(location);
    });
  }
  /// @throws InvalidArgument with the text that `message()` returns, unless `valid`
  template <class Message>
  void check_argument(bool valid, const char* operation, const here& location, Message&& message) {
    if (!valid) guard([&] { throw InvalidArgument(message(), context(operation, location)); });
  }
  [[nodiscard]] const OptimizerShards<Space>& shards() const noexcept { return shards_; }
  [[nodiscard]] std::size_t parameter_count() const noexcept { return parameters_.size(); }
  void add_average(std::weak_ptr<AverageValues<Space>> average) { averages_.push_back(std::move(average)); }
  [[nodiscard]] const std::shared_ptr<void>& swap_token() const noexcept { return state_.swap_token(); }
  /// @}

 private:
  friend class StepCapture<Space>;
  /// Returns what `f` returns; an exception ends the training, and revokes its communicators.
  template <class F>
  decltype(auto) guard(F&& f) {
    try {
      return f();
    } catch (...) {
      end_and_rethrow();
    }
  }
  /// Ends the training because of the exception that is being handled, and rethrows it.
  [[noreturn]] void end_and_rethrow();
  /// Makes a call that concerns all of the training.
  template <class F>
  void call(StepCall which, const char* operation, stream after, const here& location, F&& f) {
    const auto run = [](void* body) { (*static_cast<std::remove_reference_t<F>*>(body))(); };
    make_call(which, operation, after, location, &f, run);
  }
  /// Runs `run(body)`. Not a template, because a program instantiates every virtual function, used or not.
  void make_call(StepCall which, const char* operation, stream after, const here& location, void* body,
                 void (*run)(void*));
  /// Throws the error of the last step that the GPU has found since.
  void check_last_step(const here& location) { scaling_.check_last_step(parameters_, context("step", location)); }
  /// Rethrows the revocation that is being handled; if it follows from gradients of the last step that are not finite,
  /// as every rank finds for itself, throws the error of that step.
  [[noreturn]] void explain_revocation(const here& location) {
    guard([&] { check_last_step(location); });
    end_and_rethrow();
  }
  void check(StepCall which, const char* operation, const here& location) const {
    if (end_) end_->fail(context(operation, location));
    if (policies_.replicate && !replicas_ && (which == StepCall::step || which == StepCall::reduce_gradients))
      fail(StepFault::no_copies, operation, location);
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
    guard([&] { check_last_step(location); });
    check_no_gradients(operation, location);
    if (state_.swapped_in()) fail(StepFault::average_swapped_in, operation, location);
  }
  void check_no_gradients(const char* operation, const here& location) const {
    if (state_.accumulates() || parameters_.steps().has_gradients(parameters_.entries()))
      fail(StepFault::gradients_unsaved, operation, location);
  }
  /// Ends the engine's own scope, and checks that the user has none.
  void check_no_scope(const char* operation, const here& location, StepFault fault = StepFault::weights_unsharded) {
    always_scope_ = {};
    always_open_ = false;
    const std::string* const unit = gatherer_ == nullptr ? nullptr : gatherer_->unsharded();
    if (unit != nullptr) fail(fault, operation, location, *unit);
  }
  /// Makes the units that are always whole readable between steps, and in the forward and backward pass. Collective.
  void open_always_whole(stream after, const here& location) {
    if (always_open_ || always_whole_.empty() || state_.fault(StepCall::between_steps) != StepFault::none) return;
    always_open_ = true;
    for (const std::size_t unit : always_whole_) always_scope_.hold(gatherer_, unit, after, location, false);
  }
  /// Blocks until this rank may change its shards of the weights: no rank has a scope of `unshard`, or, where weights
  /// are shared, reads them before its own call.
  void await_readers(const char* operation, stream after, const here& location) {
    check_no_scope(operation, location);
    if (gatherer_ != nullptr) gatherer_->await_readers(after, location);
    await_others(location);
  }
  /// Where weights are shared, blocks until every rank calls it: before a change, no rank reads them, and after it, all
  /// have changed their shards.
  void await_others(const here& location) {
    if (buckets_.shares_weights()) execute(comms_.gathering(), Barrier<Space>{location});
  }

  /// Returns whether there is a processor for reductions during the backward pass; where ranks reduce in memory that
  /// they share and there is none, these would only take turns with it. The same on every rank. Collective.
  [[nodiscard]] bool has_spare_processor();
  /// Returns what steps may update while it is reduced, the same on every rank.
  [[nodiscard]] OnePass one_pass() const {
    const auto& all = comms_.all();
    if (policies_.stage == 0 || policies_.hybrid || policies_.virtual_ranks > 0 || all.size() == 1 ||
        !all.passes_operands() || options_.clips() || options_.skip_nonfinite || parameters_.scales_loss(policies_))
      return OnePass::never;
    return options_.overlap && spare_processor_ ? OnePass::single : OnePass::always;
  }
  /// @param parts  of each parameter, if they are distributed over a mesh and the state has whole shapes; else empty
  [[nodiscard]] TrainingState<Space> state_now(const std::vector<TensorPart>& parts) {
    return {StateLister<Space>(buckets_.all(), parameters_, comms_, parts, living(averages_)).arrays(),
            counters_of(parameters_, scaling_.scaler())};
  }
  /// Returns what Replicate copies: the ranks along the data axis share what they have, whichever else have the same.
  [[nodiscard]] TrainingState<Space> replicated_state() { return state_now({}); }
  [[nodiscard]] ReplicaCommunicators<Space> replica_comms() {
    ReplicaCommunicators<Space> comms{&comms_.all()};
    for (auto* const more : {&mesh_.across, &mesh_.stages})
      if (*more) comms.push_back(&**more);
    return comms;
  }
  /// Makes the present state the version from which survivors continue.
  void commit(stream after, const here& location) {
    if (replicas_) replicas_->commit(replica_comms(), replicated_state(), steps_, after, location);
  }

  void make_ready(std::size_t index, stream after, const here& location);
  /// Announces a call to the ranks without a batch, if there are any and they need it.
  void announce(JoinedCall which, std::size_t index, const here& location) {
    if (join_.announces()) join_.announce(comms_, {which, index}, location);
  }
  /// On a rank without a batch: makes the calls that the ranks with a batch announce, until these end the step.
  void end_joined_calls(stream after, const here& location);
  void check_order(const MicroBatchIndex& which, const here& location) const;
  void end_micro_batch(stream after, const here& location) {
    check_complete("micro_batch", location);
    if (policies_.begins_as_zeros()) {
      start_rest(after, location);
      reducer_.finish_all(after);
    }
    reducer_.restart(true);
    parameters_.restart(true, policies_.begins_as_zeros());
  }
  void start_reductions(stream after, const here& location) {
    check_complete("reduce_gradients", location);
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
  /// @param finite_loss  whether this rank's loss is finite
  void inspect(bool finite_loss, stream after, const here& location) {
    reducer_.finish_all(after);
    if (!scaling_.apply(parameters_, shards_, comms_, finite_loss, after, context("step", location))) state_.skip();
  }
  /// Compares the options of a step with those of the other ranks, from time to time.
  void note(const StepOptions& options, const ErrorContext& context) {
    step_options_.note(comms_.all(), options, join_.uneven() ? 0 : state_.micro_batches(), context);
  }
  void end_step(stream after, const here& location);

  CurrentDevice<Space> device_{};  // of the constructor, for calls of threads where another one is current
  TrainingPolicies policies_;
  DataParallelOptions options_;
  here location_;  // where the training was made
  TrainingCommunicators<Space> comms_;
  ParameterStore<Space> parameters_;
  TrainingBuckets<Space> buckets_;
  bool spare_processor_;
  GradientReducer<Space> reducer_;
  OptimizerShards<Space> shards_;
  GradientScaling<Space> scaling_;
  DivergenceGuard<Space> divergence_;
  std::shared_ptr<WeightGatherer<Space>> gatherer_{};  // null below stage 3
  std::vector<std::size_t> always_whole_{};            // units
  Unsharded<Space> always_scope_{};                    // of these
  bool always_open_ = false;
  StepState state_{policies_.leaves(comms_.all().size()) > 1};
  std::shared_ptr<const TrainingEnd> end_{};
  StepJoin<Space> join_{};
  StepOptionsCheck<Space> step_options_{};
  CallOrder<Space> calls_{};
  TrainingMesh<Space> mesh_{};                   // empty without a mesh, as the next two
  std::vector<std::size_t> present_{};           // the indices in the mesh's list of the parameters here
  std::vector<TensorPart> parts_{};              // of these
  std::int64_t steps_ = 0;                       // that have ended
  std::shared_ptr<Replicas<Space>> replicas_{};  // null without Replicate
  std::shared_ptr<void> checkpoint_memory_{};
  std::vector<std::weak_ptr<AverageValues<Space>>> averages_{};  // in the order in which they were made
  StepCapture<Space> capture_{};  // last: its graph is destroyed before the communicators
};

}  // namespace distx::inline DISTX_ABI::detail
