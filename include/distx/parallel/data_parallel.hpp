// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/core/detail/revocation_reason.hpp"
#include "distx/memory/detail/captured_work.hpp"
#include "distx/parallel/detail/engine/engine_owner.hpp"
#include "distx/parallel/detail/training_access.hpp"
#include "distx/parallel/detail/training_arguments.hpp"
#include "distx/parallel/exponential_average.hpp"
#include "distx/parallel/policies.hpp"
#include "distx/parallel/unsharded.hpp"

namespace distx {

namespace detail {

template <class C, class Space>
concept CommunicatorIn = Communicator<C> && std::same_as<typename C::space, Space>;

template <class A>
inline constexpr bool always_false = false;

/// Whether the optimizer can update the space's memory: outside the host's, only elementwise ones can.
template <class Optimizer, class Space>
concept UpdatesIn = ShardableOptimizer<Optimizer> && (HostAccessible<Space> || ElementwiseOptimizer<Optimizer>);

/// Whether `A` is a training, which checkpoints save.
template <class A>
inline constexpr bool is_training = false;

}  // namespace detail

/// Trains one model on all ranks: each rank computes gradients on its own part of the batch, and all ranks make the
/// same update with the gradients averaged across ranks.
///
/// Each step, every rank calls `ready` for each parameter when its gradient is final, and then `step`, or `reduce`,
/// `update` and `gather`. Gradients belong to the training from `ready` until the step ends; from stage 1 of ZeRO on,
/// their values are unspecified after it, because a step may not store averages. `ready` takes any order below stage 3;
/// at stage 3 it is called in the same order on every rank.
///
/// At stage 3 weights are sharded and readable only in the scopes of `unshard`, which is collective: every rank opens
/// and closes its scopes in the same order. Code written with `value`, `gradient` and `unshard` runs at every stage.
///
/// An error on one rank revokes the communicator, so that every rank throws, and ends the training: every later call
/// names that error. One thread at a time uses a training. Two
/// trainings whose calls interleave differently on different ranks need a communicator each, made with `split`.
///
/// Streams: each call takes a stream, and its effects are in that stream's order, after the earlier calls of the
/// training on any stream. The host waits only where a step needs a number of all gradients: for clipping, loss scaling
/// or unused parameters, and to compare learning rates. Streams must outlive the training.
///
/// Optimizers: parameters of an ElementwiseOptimizer or a NormOptimizer are sharded anywhere, those of a
/// MatrixOptimizer, alone or in a Mixed, are assigned whole to a rank.
///
/// @tparam Policies  any of, in any order: ZeRO<0> to ZeRO<3> or ZeRO<Dynamic>, Accumulate<Local> or
///   Accumulate<Sharded>, Precision<Communication>, Hybrid, Replicate, On<Space>
/// @code
/// distx::DataParallel<distx::ZeRO<1>> training(comm, parameters, distx::AdamW{.weight_decay = 0.01});
/// …
/// training.ready(layer.weight, layer.bias);
/// training.step({.learning_rate = 3e-4});
/// @endcode
template <class... Policies>
class DataParallel {
  static_assert(detail::diagnose_policies<Policies...>());

 public:
  using space = detail::space_of_policies<Policies...>;
  using stream = typename space::stream;
  using here = std::source_location;
  /// The type that `unshard` returns.
  using scope = Unsharded<space>;
  /// The stage of ZeRO, or Dynamic.
  static constexpr int stage = detail::stage_of<Policies...>;
  static constexpr detail::Accumulation accumulation = detail::accumulation_of<Policies...>();
  /// Whether the policies contain Accumulate, which `micro_batch` needs.
  static constexpr bool accumulates = accumulation != detail::Accumulation::none;
  /// Whether the policies contain Replicate.
  static constexpr bool replicates = detail::replicates_named<Policies...> > 0;

  /// Constructs a training. Collective over `comm`.
  ///
  /// Shares the communicator and copies the optimizer. The ranks' policies, options, parameters (names, sizes, element
  /// types, options) and optimizers are compared; of an optimizer, its type and its members `momentum`, `dampening`,
  /// `nesterov`, `beta`, `beta1` to `beta3`, `alpha`, `rho`, `epsilon`, `weight_decay` and `iterations`, or what its
  /// `to_string()` returns. Weights and buffers become those of rank `broadcast_from`.
  /// @throws InvalidArgument for options, parameters or an optimizer that are invalid on this rank
  /// @throws MismatchError on every rank if the ranks differ, with what differs and both values
  /// @throws MemoryError on every rank if one cannot allocate
  template <class C, class Optimizer>
    requires detail::CommunicatorIn<C, space> && detail::UpdatesIn<Optimizer, space>
  DataParallel(C& comm, const ParameterList<space>& parameters, const Optimizer& optimizer,
               const DataParallelOptions& options = {}, const here& location = here::current())
      : DataParallel(comm, parameters, optimizer, options, location, false) {}

  /// Diagnoses wrong arguments with one compile error.
  template <class C, class Parameters, class Optimizer>
    requires(!detail::CommunicatorIn<C, space> || !detail::UpdatesIn<Optimizer, space> ||
             !std::convertible_to<const Parameters&, ParameterList<space>> ||
             (stage >= 2 && detail::RangeOfRefs<Parameters>) ||
             (detail::communication_of_policies<Policies...>().has_value() && detail::RangeOfFullPrecision<Parameters>))
  DataParallel(C&, const Parameters&, const Optimizer&, const DataParallelOptions& = {}, const here& = {}) {
    static_assert(Communicator<C>, "distx::DataParallel: the first argument is not a Communicator");
    if constexpr (Communicator<C>)
      static_assert(std::same_as<typename C::space, space>,
                    "distx::DataParallel: the communicator's memory space is not the training's; add the policy "
                    "On<Space>");
    static_assert(std::convertible_to<const Parameters&, ParameterList<space>>,
                  "distx::DataParallel: the second argument is not a list of parameters; pass a range of ParameterRef "
                  "(made by distx::ref) or of Parameter in the training's memory space");
    static_assert(!detail::UpdatesOneNumber<Optimizer>,
                  "distx::DataParallel: the optimizer's update accepts one number only; make it a template of the "
                  "number's type, 'template <class V> static constexpr void update(const auto& coefficients, V& "
                  "weight, V gradient, V& state...)'");
    static_assert(ShardableOptimizer<Optimizer> || detail::UpdatesOneNumber<Optimizer>,
                  "distx::DataParallel: the third argument is not an optimizer; it must satisfy exactly one of "
                  "ElementwiseOptimizer, NormOptimizer and MatrixOptimizer, or be a Mixed");
    static_assert(detail::UpdatesIn<Optimizer, space> || !ShardableOptimizer<Optimizer>,
                  "distx::DataParallel: optimizers of whole parameters (LAMB, Muon, Mixed) support host memory only; "
                  "use an ElementwiseOptimizer, such as AdamW or SGD, on a GPU");
    static_assert(stage < 2 || !detail::RangeOfRefs<Parameters>,
                  "distx::DataParallel: ZeRO<2> and ZeRO<3> allocate gradients themselves and cannot borrow them; make "
                  "the parameters distx::Parameter, or use ZeRO<0> or ZeRO<1>");
    static_assert(
        !detail::communication_of_policies<Policies...>().has_value() || !detail::RangeOfFullPrecision<Parameters>,
        "distx::DataParallel: Precision has no effect on parameters of float or double; use parameters of "
        "bfloat16 or float16, or remove Precision");
  }

  /// Diagnoses a forgotten optimizer with one compile error.
  template <class C, class Parameters>
  DataParallel(C&, const Parameters&) {
    static_assert(!Communicator<C>,
                  "distx::DataParallel: the optimizer is missing; pass distx::AdamW{}, or another one, after the "
                  "parameters");
    static_assert(Communicator<C>, "distx::DataParallel: the first argument is not a Communicator");
  }
  /// Diagnoses a temporary communicator with one compile error.
  template <class C, class... Arguments>
    requires(!std::same_as<std::remove_cvref_t<C>, DataParallel> && Communicator<C>)
  explicit DataParallel(C&&, Arguments&&...) {
    static_assert(!Communicator<C>, "distx::DataParallel: the communicator is a temporary; give it a name first");
  }

  /// Returns the values of a parameter.
  /// @throws InvalidState at stage 3 outside the scopes of `unshard`
  template <FloatingElement T>
  [[nodiscard]] Span<T, space> value(const Parameter<T, space>& parameter) const {
    return parameter.value();
  }
  template <FloatingElement T>
  [[nodiscard]] Span<T, space> value(const ParameterRef<T, space>& parameter) const {
    return parameter.weight;
  }
  /// Returns the gradient of a parameter, to add to; the first call of a step zeroes it, in the order of `after`.
  /// @throws InvalidArgument if the parameter is frozen; InvalidState from `ready` until the next step
  template <FloatingElement T>
  [[nodiscard]] Span<T, space> gradient(const Parameter<T, space>& parameter, stream after = {}) {
    engine_.check_gradient();
    const auto guard = engine_.on_device();
    return parameter.gradient(after);
  }
  template <FloatingElement T>
  [[nodiscard]] Span<T, space> gradient(const ParameterRef<T, space>& parameter, stream after = {}) {
    engine_.request_gradient(parameter.weight.data(), after);
    return parameter.gradient;
  }

  /// Makes the weights of the parameters' units whole until the returned scope ends; takes what `ready` takes.
  ///
  /// At stage 3 collective over the ranks that shard, in the same order on every rank; below it does nothing. Where
  /// weights are gathered once for each host (`.map_weights`), scopes also end in the same order on every rank. The
  /// weights are read-only: a write is lost, or, where ranks share their memory (`.map_weights`), changes the training
  /// or what other ranks read, or ends the process by a signal.
  /// @throws InvalidArgument for what is not a parameter of the training
  /// @throws MismatchError on every rank if the ranks unshard different units, or hold different ones where these are
  ///   gathered once for each host; where weights are mapped, at the latest from `step` or `reduce`
  template <class A>
  [[nodiscard]] scope unshard(const A& parameter, const here& location = here::current()) {
    return unshard_at({stream{}, location}, parameter);
  }
  template <class A, class B>
  [[nodiscard]] scope unshard(const A& a, const B& b, const here& location = here::current()) {
    return unshard_at({stream{}, location}, a, b);
  }
  /// Does the same for three parameters or more; errors name the line of the training's construction.
  template <class A, class B, class... More>
    requires(sizeof...(More) > 0)
  [[nodiscard]] scope unshard(const A& a, const B& b, const More&... more) {
    return unshard_at({stream{}, engine_.location()}, a, b, more...);
  }
  /// A stream, and the line of the call that passes it.
  struct After {
    template <class Stream = stream>
      requires std::convertible_to<const Stream&, stream>
    After(const Stream& given = {}, const here& line = here::current())  // NOLINT: every stream converts
        : on(given), location(line) {}
    stream on;
    here location;
  };
  /// Makes weights whole for work that is enqueued on a stream until the returned scope ends.
  template <class... Parameters>
    requires(sizeof...(Parameters) > 0)
  [[nodiscard]] scope unshard_after(const After& after, const Parameters&... parameters) {
    return unshard_at(after, parameters...);
  }
  /// Opens a scope in which weights are used without gradients, and `unshard` may be called in another order than in
  /// training. Local.
  [[nodiscard]] detail::Evaluation<space> evaluate() { return engine_.evaluate(); }

  /// Begins a micro-batch of a step; its gradients are added to those of the micro-batches before. Every parameter is
  /// `ready` once in each micro-batch. Collective with Accumulate<Sharded>.
  ///
  /// @param last  whether it is the last one of its step
  /// @throws InvalidState after the last micro-batch of a step
  [[nodiscard]] detail::MicroBatch micro_batch(bool last, stream after = {}, const here& location = here::current()) {
    static_assert(
        accumulates,
        "distx: micro_batch needs the policy Accumulate<Local> or Accumulate<Sharded>; without one, a step has "
        "one batch");
    engine_.begin_micro_batch(last, after, location);
    return {};
  }

  /// Declares gradients of this rank final, and starts the reductions whose turn has come. Never waits for other ranks
  /// below stage 3.
  ///
  /// @param parameter  or several: ParameterRefs, Parameters, the weights' own arrays, or ranges of these
  /// @throws InvalidArgument for what is not a trained parameter of the training; InvalidState for what is ready
  ///   already, or, without `.allow_unused`, for a Parameter whose gradient was not requested in this step
  /// @throws MismatchError on every rank, here or in `step`, if orders differ at stage 3 without `.allow_unused`
  template <class A>
  void ready(const A& parameter, const here& location = here::current()) {
    ready_one({stream{}, location}, parameter);
  }
  template <class A, class B>
  void ready(const A& a, const B& b, const here& location = here::current()) {
    ready_one({stream{}, location}, a);
    ready_one({stream{}, location}, b);
  }
  /// Does the same for three parameters or more; errors name the line of the training's construction.
  template <class A, class B, class... More>
    requires(sizeof...(More) > 0)
  void ready(const A& a, const B& b, const More&... more) {
    ready_after({stream{}, engine_.location()}, a, b, more...);
  }
  /// Declares gradients final once the work enqueued on a stream is complete.
  template <class... Ready>
  void ready_after(const After& after, const Ready&... parameters) {
    (ready_one(after, parameters), ...);
  }

  /// Agrees on which ranks have a batch in the next step, if the ranks have different numbers of batches. Collective,
  /// between steps: call it on every rank before each step.
  ///
  /// A rank without a batch calls `step` next, or `reduce`, `update` and `gather`, with the same options as the others,
  /// and nothing else. It takes part in all collectives of the step with gradients of zero; the gradients are divided
  /// by the number of ranks, or as `.average_over_active` says. At stage 3 it makes the calls of the ranks with a batch
  /// as they announce them, which costs a small blocking reduction per call in such steps, and nothing is prefetched.
  /// @return the number of ranks with a batch; if it is 0, no rank makes the step
  /// @throws InvalidState during a step, or in a scope of `unshard`
  /// @code
  /// for (auto batch = epoch.next(); training.join(batch.has_value()) > 0; batch = epoch.next()) {
  ///   if (batch) forward_backward(*batch);
  ///   training.step({.learning_rate = 0.1});
  /// }
  /// @endcode
  [[nodiscard]] int join(bool has_batch, stream after = {}, const here& location = here::current()) {
    return engine_.join(has_batch, after, location);
  }

  /// Ends the step: `reduce`, `update` and `gather` in one call, with the update of one bucket overlapping the
  /// communication of others. Collective.
  /// @throws InvalidArgument for an invalid learning rate; InvalidState if a parameter has no gradient
  /// @throws MismatchError on every rank if learning rates differ, in the steps that StepOptions names
  /// @throws NonFiniteError on every rank for a loss, or with clipping a gradient, that is not finite, unless
  /// `.skip_nonfinite` is set; a rank whose part of the step is complete throws it in its next call. On a GPU the
  /// host does not wait for the gradients' norm: the step leaves the weights unchanged, and the next call that concerns
  /// all of the training throws. The host is then at most one step ahead of the GPU.
  void step(const StepOptions& options, stream after = {}, const here& location = here::current()) {
    engine_.step(options, after, location);
  }
  /// Captures a step in a CUDA graph: `f()` enqueues the step, its forward and backward pass included, on `after` and
  /// on streams that it orders after that one, and calls `step` once. `replay` runs it.
  ///
  /// Nothing runs, and no step is counted. `f` must not block the host, and must enqueue the same calls on every rank;
  /// its arrays keep their addresses while the graph exists, until the next `capture` or the end of this object. If it
  /// throws, the training cannot continue.
  /// Learning rate and loss of the captured step are not used. Collective: every rank captures. Blocks the host.
  /// @pre a step has been made without capture
  /// @throws InvalidState at stage 3, with `.allow_unused`, `.skip_nonfinite`, `.guard_every`, scaled losses or
  ///   Replicate, during a step, or if `f` does not make one step
  /// @code
  ///   training.capture([&] { forward_backward(input, stream); training.ready_after(stream, parameters);
  ///                          training.step({.learning_rate = 0}, stream); }, stream);
  ///   for (…) {
  ///     copy(stream, input, batch);                         // into the captured array
  ///     training.replay({.learning_rate = 3e-4}, stream);
  ///   }
  /// @endcode
  void capture(const std::function<void()>& f, stream after, const here& location = here::current()) {
    static_assert(detail::CapturedWork<space>::available,
                  "distx::DataParallel: only steps on GPUs can be captured; add the policy On<Cuda>");
    engine_.capture(f, after, location);
  }
  /// Enqueues the captured step, as one launch and one copy of the optimizer's coefficients. Collective: every rank
  /// replays, between the same other steps.
  ///
  /// The weights have the bits that `step` would give them. Options are checked and compared, gradients that are not
  /// finite are reported, and steps are counted, as by `step`. Ranks that fail, or that do not replay, are noticed by
  /// the communicator's deadline; the flight record has one reduction after the step in place of its collectives, and a
  /// decorator of the communicator sees that one only.
  /// @throws InvalidState if no step is captured, or in a step; else as `step`
  void replay(const StepOptions& options, stream after, const here& location = here::current()) {
    engine_.replay(options, after, location);
  }
  /// Averages the gradients across ranks, and clips them; a rank without a gradient counts as zeros. Collective.
  void reduce(stream after = {}, const here& location = here::current()) { engine_.reduce(after, location); }
  /// Updates the weights of this rank's shards with the optimizer. Collective. @pre `reduce`
  void update(const StepOptions& options, stream after = {}, const here& location = here::current()) {
    engine_.update(options, after, location);
  }
  /// Ends the step: every rank receives the weights that other ranks have updated. Collective. @pre `reduce`
  void gather(stream after = {}, const here& location = here::current()) { engine_.gather(after, location); }

  /// Returns what this rank has to update between `reduce` and `gather`, for custom update kernels in place of
  /// `update`.
  ///
  /// A segment is part of one parameter. At stages 1 to 3 the segments of all ranks partition the weights; at stage 0
  /// every rank has all of them. At stage 3, write the weights before the next `unshard`.
  /// @throws InvalidState before `reduce`
  [[nodiscard]] std::vector<Segment<space>> owned(const here& location = here::current()) {
    return engine_.owned(location);
  }

  /// Calls f(name, values) for every parameter, in the order of the list, with its whole values, which are valid during
  /// the call. At stage 3, one unit at a time is gathered. Collective, between steps.
  template <std::invocable<const std::string&, Span<const AnyElement, space>> F>
  void for_each_full_weight(F&& f, stream after = {}, const here& location = here::current()) {
    engine_.for_each_full_weight(std::ref(f), after, location);
  }
  /// Ends the training and leaves whole weights in its Parameters. Collective, between steps.
  void release(stream after = {}, const here& location = here::current()) { engine_.release(after, location); }
  /// Returns an exponential moving average that starts from the current weights; it must not outlive the training.
  /// @param decay  in [0, 1), such as 0.999
  /// @throws InvalidArgument for another decay
  [[nodiscard]] ExponentialAverage<space> average(double decay, stream after = {},
                                                  const here& location = here::current()) {
    static_assert(!replicates, "distx::DataParallel: an average is not copied by Replicate; remove one of them");
    return ExponentialAverage<space>(*engine_, decay, after, location);
  }

  /// Returns all that the training needs to be resumed: weights, the optimizer's arrays by name, and counters, with
  /// what this rank holds of them. Local, between steps. `distx/checkpoint.hpp` saves and loads it.
  /// @throws InvalidState during a step, or while an average is swapped in
  [[nodiscard]] TrainingState<space> state(const here& location = here::current()) { return engine_.state(location); }

  /// Continues on the ranks of `comm`, after ranks are lost or join; again if it throws because further ones are lost.
  /// Collective over `comm`, which has ranks of this training, in their order, and then those that join: on these, the
  /// constructor takes part in this call, with the same parameters, optimizer and options as at the beginning, and
  /// receives the state. All scopes of `unshard` must have ended.
  ///
  /// The state becomes that of the last step that all ranks have ended: on a rank where `step` has returned it is not
  /// an earlier one. Weights, optimizer state and counters have the bits of a training on these ranks that has loaded a
  /// checkpoint of that step; at stage 0, buffers are those of the first rank that is left. `.broadcast_from` becomes
  /// 0.
  /// @return the number of steps that the training has made, also skipped ones, the same on every rank: the next one is
  ///   that of this index
  /// @throws CheckpointError on every rank if a rank and the next one are lost at stages 1 to 3, with the names of the
  ///   parameters; the training has ended then: make a new one and load the last checkpoint
  /// @throws RankFailure, RevokedError or TimeoutError if further ranks are lost
  /// @code
  ///   connector = connector.shrink();  // in the loop, after an error of which is_rank_loss(error)
  ///   comm = distx::ShmCommunicator(connector);
  ///   step = training.recover(comm);
  /// @endcode
  template <class C>
    requires detail::CommunicatorIn<C, space>
  std::uint64_t recover(C& comm, const here& location = here::current()) {
    static_assert(replicates, "distx::DataParallel: recover needs copies of the state; add the policy Replicate");
    return engine_.recover(AnyCommunicator<space>(comm.share()), location);
  }

  /// Returns the norm of all gradients of the last step before they were clipped; 0 without `.clip_norm`. On a GPU it
  /// blocks the host until the norm is known.
  [[nodiscard]] double gradient_norm() const { return engine_.gradient_norm(); }
  /// Returns the factor for the loss before the backward pass: 1 without float16 parameters and Precision.
  [[nodiscard]] double loss_scale() const { return engine_.loss_scale(); }
  /// Returns the number of steps that were skipped because a scaled loss made a gradient overflow, or by
  /// `.skip_nonfinite`.
  [[nodiscard]] std::uint64_t skipped_steps() const { return engine_.skipped_steps(); }
  /// Returns the bytes that this rank holds, now and at peak.
  [[nodiscard]] observe::MemoryLedger memory() const { return engine_.memory(); }
  /// Returns the number of reductions in a step.
  [[nodiscard]] std::size_t bucket_count() const noexcept { return engine_.bucket_count(); }

 private:
  friend struct detail::TrainingAccess;
  static constexpr bool may_shard_weights = stage == 3 || stage == Dynamic;

  template <class C, class Optimizer>
  DataParallel(C& comm, const ParameterList<space>& parameters, const Optimizer& optimizer,
               const DataParallelOptions& options, const here& location, bool part_of_model)
      : engine_(AnyCommunicator<space>(comm.share()), detail::ParameterListAccess::entries(parameters),
                detail::any_optimizer<space>(optimizer), policies(options, comm, location, part_of_model), options,
                location) {
    if constexpr (replicates)
      engine_.replicate(
          detail::ParameterListAccess::entries(parameters),
          [optimizer = std::make_shared<const Optimizer>(optimizer)] {
            return detail::any_optimizer<space>(*optimizer);
          },
          options, location);
  }

  template <class C>
  static detail::TrainingPolicies policies(const DataParallelOptions& options, C& comm, const here& location,
                                           bool part_of_model) {
    const auto fail = [&](const std::string& message) {
      const InvalidArgument error(message, {"DataParallel", comm.backend(), comm.rank(), comm.size(), location});
      comm.revoke(detail::RevocationReason::of(error).published());
      throw error;
    };
    if (stage != Dynamic && options.stage)
      fail(".stage has no effect with the policy ZeRO<" + std::to_string(stage) +
           ">; use ZeRO<Dynamic>, or omit .stage");
    if (stage == Dynamic && !options.stage) fail("ZeRO<Dynamic> needs .stage; set it to 0, 1, 2 or 3");
    if (stage == Dynamic && !(*options.stage >= 0 && *options.stage <= 3))
      fail("invalid .stage = " + std::to_string(*options.stage) + ": must be 0, 1, 2 or 3");
    const int chosen = stage == Dynamic ? *options.stage : stage;
    if (chosen >= 2 && accumulation == detail::Accumulation::local)
      fail("Accumulate<Local> needs whole gradients, which stage " + std::to_string(chosen) +
           " of ZeRO shards; use Accumulate<Sharded>");
    if (chosen == 0 && detail::hybrid_named<Policies...>)
      fail("Hybrid sharding requires stage 1, 2 or 3 of ZeRO; set .stage");
    return {
        chosen,     accumulation, detail::communication_of_policies<Policies...>(), detail::hybrid_named<Policies...>,
        replicates, part_of_model};
  }

  template <class A>
  void ready_one(const After& after, const A& parameter) {
    if constexpr (detail::is_parameter_ref<A>)
      engine_.ready(parameter.weight.data(), after.on, after.location);
    else if constexpr (detail::is_parameter<A>)
      engine_.ready(identity_of(parameter), after.on, after.location);
    else if constexpr (detail::is_parameter_pointer<A>)
      engine_.ready(identity_of(*parameter), after.on, after.location);
    else if constexpr (detail::ListOfReady<A>)
      for (const auto& each : parameter) ready_one(after, each);
    else if constexpr (detail::Contiguous<const A>)
      engine_.ready(detail::contiguous(parameter).data(), after.on, after.location);
    else
      static_assert(detail::always_false<A>,
                    "distx: ready takes ParameterRefs, Parameters, the arrays of weights, or ranges of these");
  }
  template <class... Parameters>
  [[nodiscard]] scope unshard_at(const After& after, const Parameters&... parameters) {
    scope units;
    if constexpr (may_shard_weights)
      if (engine_.shards_weights()) (unshard_one(units, after, parameters), ...);
    return units;
  }
  template <class A>
  void unshard_one(scope& units, const After& after, const A& parameter) {
    if constexpr (detail::is_parameter<A>)
      engine_.unshard(units, identity_of(parameter), after.on, after.location);
    else if constexpr (detail::is_parameter_pointer<A>)
      unshard_one(units, after, *parameter);
    else if constexpr (detail::ListOfReady<A>)
      for (const auto& each : parameter) unshard_one(units, after, each);
    else
      static_assert(detail::is_parameter_ref<A> || detail::Contiguous<const A>,  // whole at every stage
                    "distx: unshard takes what ready takes");
  }

  detail::EngineOwner<space> engine_;
};

namespace detail {

template <class... Policies>
inline constexpr bool is_training<DataParallel<Policies...>> = true;

}  // namespace detail

}  // namespace distx

#ifndef DISTX_COMPILED
#include "distx/parallel/detail/engine/engine_owner_calls.hpp"
#endif
