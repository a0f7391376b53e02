// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/detail/engine/checks/divergence_guard.hpp"
#include "distx/parallel/detail/engine/checks/step_options_check.hpp"
#include "distx/parallel/detail/engine/gather/unsharded_calls.hpp"
#include "distx/parallel/detail/engine/state/list_state.hpp"
#include "distx/parallel/detail/engine/state/recovery.hpp"
#include "distx/parallel/detail/engine/step/gradient_reducer.hpp"
#include "distx/parallel/detail/engine/step/gradient_scaling.hpp"
#include "distx/parallel/detail/engine/step/step_capture.hpp"
#include "distx/parallel/detail/engine/step/step_join.hpp"
#include "distx/parallel/detail/engine/step/step_state.hpp"
#include "distx/parallel/detail/engine/training_buckets.hpp"

namespace distx::detail {

/// The error that has ended a training, as later calls report it.
struct TrainingEnd {
  std::string message;
  bool rank_loss = false;
};

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
                 const DataParallelOptions& options, const here& location);
  TrainingEngine(const TrainingEngine&) = delete;
  TrainingEngine& operator=(const TrainingEngine&) = delete;
  ~TrainingEngine();

  using Guard = typename CurrentDevice<Space>::Guard;
  /// Makes the training's device current on this thread until the scope ends.
  [[nodiscard]] Guard on_device() const { return Guard(device_); }

  /// Checks that gradients can be requested now.
  void check_gradient() {
    guard([&] { check(StepCall::gradient, "gradient", location_); });
  }
  /// Zeroes a borrowed gradient when it is first requested in a step.
  void request_gradient(const void* identity, stream after);
  void ready(const void* identity, stream after, const here& location);

  void begin_micro_batch(bool last, stream after, const here& location);
  /// Returns the number of ranks that have a batch in the next step; the others take part with gradients of zero.
  int join(bool has_batch, stream after, const here& location);
  void step(const StepOptions& options, stream after, const here& location);
  void reduce(stream after, const here& location);
  void update(const StepOptions& options, stream after, const here& location);
  void gather(stream after, const here& location);

  /// Returns what this rank updates in this step.
  [[nodiscard]] std::vector<Segment<Space>> owned(const here& location);

  /// Calls f(name, values) for every parameter with its whole values, in the order of the list.
  void for_each_full_weight(const std::function<void(const std::string&, Span<const AnyElement, Space>)>& f,
                            stream after, const here& location);
  /// Ends the training; owned parameters keep whole weights.
  void release(stream after, const here& location);

  /// @name For ExponentialAverage
  /// @{
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
  /// Runs `f`, ordered between the other calls of the training.
  template <class F>
  void ordered(stream after, F&& f) {
    const Guard on(device_);
    guard([&] {
      calls_.enter(after);
      f();
      calls_.leave(after);
    });
  }
  /// @throws InvalidArgument with the text that `message()` returns, unless `valid`
  template <class Message>
  void check_argument(bool valid, const char* operation, const here& location, Message&& message) {
    if (!valid) guard([&] { throw InvalidArgument(message(), context(operation, location)); });
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
  [[nodiscard]] TrainingState<Space> state(const here& location);
  /// Runs `change`, which overwrites arrays of `state()`, all of them if `which` is `load`, and sets the counters.
  /// Every rank calls it. If `change` returns false on every rank, the state is incomplete, and only `load` is legal.
  template <class F>
  void restore(StepCall which, const TrainingCounters& counters, stream after, const here& location, F&& change) {
    call(which, "load", after, location, [&] {
      check_resumable(which, "load", location);
      await_readers("load", after, location);
      state_.set_incomplete(true);
      if (!change()) return;
      buckets_.gather_on_hosts(parameters_.entries(), comms_, after, location);
      await_others(location);
      state_.set_incomplete(false);
      restore_counters(parameters_, scaling_.scaler(), counters);
      commit(after, location);
    });
  }
  /// Checks that the state can be saved, and that the ranks have passed the same options in the last steps. Collective.
  /// @throws InvalidState if the state is incomplete, or during a step
  void check_savable(const here& location) {
    check(StepCall::between_steps, "save", location);
    step_options_.compare(comms_.all(), context("save", location));
  }
  /// Describes the parameters as parts of distributed ones.
  void describe_parts(std::vector<TensorPart> parts) { parts_ = std::move(parts); }
  [[nodiscard]] AnyCommunicator<Space>& communicator() noexcept { return comms_.all(); }
  /// Returns memory of any type that checkpoints keep from one save to the next.
  [[nodiscard]] std::shared_ptr<void>& checkpoint_memory() noexcept { return checkpoint_memory_; }
  [[nodiscard]] const TrainingPolicies& policies() const noexcept { return policies_; }
  /// Takes over the newest state of which copies are kept on any rank, if there is one, and begins to keep copies.
  /// Collective.
  /// @param kept  this rank's copies of the training on other ranks
  /// @return the number of steps that the training has made
  std::uint64_t replicate(std::vector<std::unique_ptr<Replicas<Space>>>& kept, const here& location);
  /// Ends the training after a failure, and returns its copies of the state; null if it has none. Local.
  [[nodiscard]] std::unique_ptr<Replicas<Space>> take_replicas();
  /// @}

  [[nodiscard]] bool shards_weights() const noexcept { return gatherer_ != nullptr; }
  /// Makes the unit of an owned parameter whole until `scope` ends. @pre shards_weights()
  void unshard(Unsharded<Space>& scope, const void* identity, stream after, const here& location);
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
    const Guard on(device_);
    guard([&] {
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
  [[noreturn]] void explain_revocation(const here& location);
  void check(StepCall which, const char* operation, const here& location) const;
  [[noreturn]] void fail(StepFault fault, const char* operation, const here& location,
                         std::string_view subject = {}) const;
  [[nodiscard]] ErrorContext context(std::string_view operation, const here& location) const;
  void check_resumable(StepCall which, const char* operation, const here& location);
  void check_no_gradients(const char* operation, const here& location) const;
  void check_no_scope(const char* operation, const here& location) const;
  /// Blocks until this rank may change its shards of the weights: no rank has a scope of `unshard`, or, where weights
  /// are shared, reads them before its own call.
  void await_readers(const char* operation, stream after, const here& location);
  /// Where weights are shared, blocks until every rank calls it: before a change, no rank reads them, and after it, all
  /// have changed their shards.
  void await_others(const here& location) {
    if (buckets_.shares_weights()) execute(comms_.gathering(), Barrier<Space>{location});
  }

  /// Returns what steps may update while it is reduced, the same on every rank. Collective.
  [[nodiscard]] OnePass one_pass();
  [[nodiscard]] TrainingState<Space> state_now();
  /// Makes the present state the version from which survivors continue.
  void commit(stream after, const here& location) {
    if (replicas_) replicas_->commit(comms_.all(), state_now(), steps_, after, location);
  }

  void make_ready(std::size_t index, stream after, const here& location);
  /// Announces a call to the ranks without a batch, if there are any and they need it.
  void announce(JoinedCall which, std::size_t index, const here& location) {
    if (join_.announces()) join_.announce(comms_, {which, index}, location);
  }
  /// On a rank without a batch: makes the calls that the ranks with a batch announce, until these end the step.
  void end_joined_calls(stream after, const here& location);
  void end_micro_batch(stream after, const here& location);
  void start_reductions(stream after, const here& location);
  void check_complete(const char* operation, const here& location) const;
  void start_rest(stream after, const here& location);
  /// @param finite_loss  whether this rank's loss is finite
  void inspect(bool finite_loss, stream after, const here& location);
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
  GradientReducer<Space> reducer_;
  OptimizerShards<Space> shards_;
  GradientScaling<Space> scaling_;
  DivergenceGuard<Space> divergence_;
  std::shared_ptr<WeightGatherer<Space>> gatherer_{};  // null below stage 3
  StepState state_{};
  std::optional<TrainingEnd> end_{};
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
