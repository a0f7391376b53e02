// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/memory/detail/captured_work.hpp"
#include "distx/parallel/detail/engine/engine_interface.hpp"
#include "distx/parallel/detail/training_access.hpp"
#include "distx/parallel/detail/training_arguments.hpp"
#include "distx/parallel/exponential_average.hpp"
#include "distx/parallel/policies.hpp"
#include "distx/parallel/unsharded.hpp"

namespace distx::inline DISTX_ABI {

/// The calls that DataParallel shares with MeshParallel and LocalTraining, each of which has some of them.
///
/// Streams: each call takes a stream, and its effects are in that stream's order. Without an argument it is the default
/// stream; of a MeshParallel, the mesh's.
/// @tparam Alone  whether the calls do nothing, as in LocalTraining
template <bool Alone, class... Policies>
class TrainingMethods {
  static_assert(detail::diagnose_policies<Policies...>());

 public:
  using space = detail::space_of_policies<Policies...>;
  using stream = typename space::stream;
  using here = std::source_location;
  /// The type that `unshard` returns.
  using scope = Unsharded<space>;
  /// The stage of ZeRO, or Dynamic.
  static constexpr int stage = detail::policies_of<Policies...>.values.stage;
  static constexpr detail::Accumulation accumulation = detail::policies_of<Policies...>.values.accumulation;
  /// Whether the policies contain Accumulate or Reproducible, one of which `micro_batch` needs.
  static constexpr bool accumulates = accumulation != detail::Accumulation::none;
  /// The argument of Reproducible, or 0 without it.
  static constexpr int virtual_ranks = detail::policies_of<Policies...>.values.virtual_ranks;
  /// Whether the policies contain Replicate.
  static constexpr bool replicates = detail::policies_of<Policies...>.values.replicate;

  /// Returns the values of a parameter.
  /// @throws InvalidState at stage 3 outside the scopes of `unshard`
  template <detail::ParameterElement T>
  [[nodiscard]] Span<T, space> value(const Parameter<T, space>& parameter) const {
    return parameter.value();
  }
  template <detail::ParameterElement T>
  [[nodiscard]] Span<T, space> value(const ParameterRef<T, space>& parameter) const {
    return parameter.weight;
  }
  /// Returns the gradient of a parameter, to add to; the first call of a step zeroes it, in the order of `after`.
  /// @throws InvalidArgument if the parameter is frozen; InvalidState from `ready` until the next step
  template <detail::ParameterElement T>
  [[nodiscard]] Span<T, space> gradient(const Parameter<T, space>& parameter, const std::optional<stream>& after = {}) {
    [[maybe_unused]] const auto on_device = check_gradient();
    return parameter.gradient(on(after));
  }
  template <detail::ParameterElement T>
  [[nodiscard]] Span<T, space> gradient(const ParameterRef<T, space>& parameter,
                                        const std::optional<stream>& after = {}) {
    if constexpr (!Alone) engine_->request_gradient(parameter.weight.data(), on(after));
    return parameter.gradient;
  }

  /// Adds values to the gradient of a parameter, in the order of `after`: for frameworks that compute gradients in
  /// their memory. The first ones of a step are copied, in one pass.
  /// @throws InvalidArgument unless they have the gradient's type and size; else as `gradient`
  template <detail::ParameterElement T>
  void add_gradient(const Parameter<T, space>& parameter, Span<const std::type_identity_t<T>, space> values,
                    const std::optional<stream>& after = {}) {
    [[maybe_unused]] const auto on_device = check_gradient();
    parameter.add_gradient(values, on(after));
  }

  /// Makes the weights of the parameters' units whole until the returned scope ends; takes what `ready` takes.
  ///
  /// At stage 3 collective over the ranks that shard, in the same order on every rank; below it does nothing. Where
  /// weights are gathered once for each host (`.map_weights`), scopes also end in the same order on every rank. The
  /// weights are read-only; writing to them is undefined behavior: a lost update, other weights on other ranks, or a
  /// signal that ends the process.
  /// @throws InvalidArgument for what is not a parameter of the training
  /// @throws MismatchError on every rank if the ranks unshard different units, or hold different ones where these are
  ///   gathered once for each host; where weights are mapped, at the latest from `step` or `reduce_gradients`
  template <class... More>
  [[nodiscard]] scope unshard(const detail::ReadyArgument& parameter, const More&... more) {
    return unshard_after({stream_, parameter.location}, parameter, more...);
  }
  /// A stream, and the line of the call that passes it.
  struct OnStream {
    template <class Stream = stream>
      requires std::convertible_to<const Stream&, stream>
    OnStream(const Stream& given = {}, const here& line = here::current())  // NOLINT: every stream converts
        : on(given), location(line) {}
    stream on;
    here location;
  };
  /// Makes weights whole for work that is enqueued on a stream until the returned scope ends.
  template <class... Parameters>
    requires(sizeof...(Parameters) > 0)
  [[nodiscard]] scope unshard_after(const OnStream& after, const Parameters&... parameters) {
    scope units;
    (add_unsharded(units, after, parameters), ...);
    return units;
  }
  /// Opens a scope in which weights are used without gradients, and `unshard` may be called in another order than in
  /// training. Local.
  [[nodiscard]] detail::Evaluation<space> evaluate() {
    if constexpr (Alone)
      return {};
    else
      return engine_->evaluate();
  }

  /// Begins a micro-batch of a step; its gradients are added to those of the micro-batches before, or, with
  /// Reproducible, averaged with them. Every parameter is `ready` once in each micro-batch. Collective with
  /// Accumulate<Sharded>.
  ///
  /// @param which  its index in the step, and the number of micro-batches of the step
  /// @throws InvalidArgument unless the index is below the number, which is V / ranks with Reproducible<V>
  /// @throws InvalidState if indices are out of order, or the number changes within a step
  [[nodiscard]] detail::MicroBatch micro_batch(const MicroBatchIndex& which, const std::optional<stream>& after = {},
                                               const here& location = here::current()) {
    static_assert(
        accumulates || Alone,
        "distx: micro_batch needs the policy Accumulate<Local>, Accumulate<Sharded> or Reproducible<V>; without one, a "
        "step has one batch");
    if constexpr (!Alone) engine_->begin_micro_batch(which, on(after), location);
    return {};
  }

  /// Declares gradients of this rank final, and starts the reductions whose turn has come. Never waits for other ranks
  /// below stage 3.
  ///
  /// @param parameter  or several: ParameterRefs, Parameters, the weights' own arrays, or ranges of these
  /// @throws InvalidArgument for what is not a trained parameter of the training; InvalidState for what is ready
  ///   already, or, without `.allow_unused`, for a Parameter whose gradient was not requested in this step
  /// @throws MismatchError on every rank, here or in `step`, if orders differ at stage 3 without `.allow_unused`
  template <class... More>
  void ready(const detail::ReadyArgument& parameter, const More&... more) {
    ready_after({stream_, parameter.location}, parameter, more...);
  }
  /// Declares gradients final once the work enqueued on a stream is complete.
  template <class... Ready>
  void ready_after(const OnStream& after, const Ready&... parameters) {
    (ready_one(after, parameters), ...);
  }

  /// Agrees on which ranks have a batch in the next step, if the ranks have different numbers of batches. Collective,
  /// between steps: call it on every rank before each step.
  ///
  /// A rank without a batch calls `step` next, or `reduce_gradients`, `update_weights` and `gather_weights`, with the
  /// same options as the others, and nothing else. It takes part in all collectives of the step with gradients of zero;
  /// the gradients are divided by the number of ranks, or as `.average_over_active` says. At stage 3 it makes the calls
  /// of the ranks with a batch as they announce them, which costs a small blocking reduction per call in such steps,
  /// and nothing is prefetched.
  /// @return the number of ranks with a batch; if it is 0, no rank makes the step
  /// @throws InvalidState during a step, or in a scope of `unshard`
  /// @code
  /// for (auto batch = epoch.next(); training.announce_batch(batch.has_value()) > 0; batch = epoch.next()) {
  ///   if (batch) forward_backward(*batch);
  ///   training.step({.learning_rate = 0.1});
  /// }
  /// @endcode
  [[nodiscard]] int announce_batch(bool has_batch, const std::optional<stream>& after = {},
                                   const here& location = here::current()) {
    static_assert(Alone || virtual_ranks == 0,
                  "distx: announce_batch contradicts Reproducible: a rank without a batch would leave out virtual "
                  "ranks, and how many depends on the number of ranks; give every rank the same number of batches");
    if constexpr (Alone)
      return has_batch ? 1 : 0;
    else
      return engine_->announce_batch(has_batch, on(after), location);
  }

  /// Ends the step: `reduce_gradients`, `update_weights` and `gather_weights` in one call, with the update of one
  /// bucket overlapping the communication of others. Collective.
  /// @throws InvalidArgument for an invalid learning rate; InvalidState if a parameter has no gradient
  /// @throws MismatchError on every rank if learning rates differ, in the steps that StepOptions names
  /// @throws NonFiniteError on every rank for a loss, or with clipping a gradient, that is not finite, unless
  /// `.skip_nonfinite` is set; a rank whose part of the step is complete throws it in its next call. On a GPU the
  /// host does not wait for the gradients' norm: the step leaves the weights unchanged, and the next call that concerns
  /// all of the training throws. The host is then at most one step ahead of the GPU.
  void step(const StepOptions& options, const std::optional<stream>& after = {},
            const here& location = here::current()) {
    engine_->step(options, on(after), location);
  }
  /// Averages the gradients across ranks, and clips them; a rank without a gradient counts as zeros. Collective.
  void reduce_gradients(const std::optional<stream>& after = {}, const here& location = here::current()) {
    engine_->reduce_gradients(on(after), location);
  }
  /// Updates the weights of this rank's shards with the optimizer. Collective. @pre `reduce_gradients`
  void update_weights(const StepOptions& options, const std::optional<stream>& after = {},
                      const here& location = here::current()) {
    engine_->update_weights(options, on(after), location);
  }
  /// Ends the step: every rank receives the weights that other ranks have updated. Collective. @pre `reduce_gradients`
  void gather_weights(const std::optional<stream>& after = {}, const here& location = here::current()) {
    engine_->gather_weights(on(after), location);
  }

  /// Captures a step in a CUDA graph: `f()` enqueues the step, its forward and backward pass included, on `after` and
  /// on streams that it orders after that one, and calls `step` once. `replay` runs it.
  ///
  /// Nothing runs, and no step is counted. `f` must not block the host, and must enqueue the same calls on every rank;
  /// its arrays keep their addresses while the graph exists, until the next `capture` or the end of this object. If it
  /// throws, the training cannot continue. Learning rate and loss of the captured step are not used. Collective: every
  /// rank captures. Blocks the host.
  /// @pre a step has been made without capture
  /// @throws InvalidArgument for CUDA's default stream, which cannot be captured
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
  void capture(const std::function<void()>& f, const std::optional<stream>& after = {},
               const here& location = here::current()) {
    static_assert(detail::CapturedWork<space>::available,
                  "distx: capture: only steps on GPUs can be captured; add the policy On<Cuda>");
    engine_->capture(f, on(after), location);
  }
  /// Enqueues the captured step, as one launch and one copy of the optimizer's coefficients. Collective: every rank
  /// replays, between the same other steps.
  ///
  /// The weights have the bits that `step` would give them. Options are checked and compared, gradients that are not
  /// finite are reported, and steps are counted, as by `step`. A rank that fails or does not replay causes a
  /// TimeoutError on the others at the deadline. The flight record and decorators see one reduction per communicator
  /// for each replay: two with Hybrid.
  /// @throws InvalidState if no step is captured, or in a step; else as `step`
  void replay(const StepOptions& options, const std::optional<stream>& after = {},
              const here& location = here::current()) {
    engine_->replay(options, on(after), location);
  }

  /// Returns what this rank has to update between `reduce_gradients` and `gather_weights`, for custom update kernels in
  /// place of `update_weights`.
  ///
  /// A fragment is part of one parameter. At stages 1 to 3 the fragments of all ranks partition the weights; at stage 0
  /// every rank has all of them. At stage 3, write the weights before the next `unshard`.
  /// @throws InvalidState before `reduce_gradients`
  [[nodiscard]] std::vector<Fragment<space>> owned(const here& location = here::current()) {
    return engine_->owned(location);
  }

  /// Ends the training and leaves whole weights in its Parameters, or its part of them. Collective, between steps.
  void release(const std::optional<stream>& after = {}, const here& location = here::current()) {
    engine_->release(on(after), location);
  }
  /// Calls f(name, values) for every parameter, in the order of the list, with its whole values, which are valid during
  /// the call. At stage 3, one unit at a time is gathered, exactly with Compress too. Collective, between steps.
  /// @throws InvalidState in a scope of `unshard` if Compress encodes weights
  template <std::invocable<const std::string&, Span<const AnyElement, space>> F>
  void for_each_full_weight(F&& f, const std::optional<stream>& after = {}, const here& location = here::current()) {
    engine_->for_each_full_weight(std::ref(f), on(after), location);
  }
  /// Returns an exponential moving average that starts from the current weights; it must not outlive the training.
  /// @param decay  in [0, 1), such as 0.999
  /// @throws InvalidArgument for another decay
  [[nodiscard]] ExponentialAverage<space> ema(double decay, const std::optional<stream>& after = {},
                                              const here& location = here::current()) {
    static_assert(!replicates, "distx: ema: an average is not copied by Replicate; remove one of them");
    return ExponentialAverage<space>(*engine_, decay, on(after), location);
  }
  /// Returns all that the training needs to be resumed: weights, the optimizer's arrays by name, and counters, with
  /// what this rank holds of them. Local, between steps. `distx/checkpoint.hpp` saves and loads it.
  /// @throws InvalidState during a step, or while an average is swapped in
  [[nodiscard]] TrainingState<space> state(const here& location = here::current()) { return engine_->state(location); }

  /// Returns the norm of all gradients of the last step before they were clipped; 0 without `.clip_norm`. On a GPU it
  /// blocks the host until the norm is known.
  [[nodiscard]] double gradient_norm() const { return engine_->gradient_norm(); }
  /// Returns the factor for the loss before the backward pass: 1 without float16 parameters and Precision.
  [[nodiscard]] double loss_scale() const { return engine_->loss_scale(); }
  /// Returns the number of steps that were skipped because a scaled loss made a gradient overflow, or by
  /// `.skip_nonfinite`.
  [[nodiscard]] std::uint64_t skipped_steps() const { return engine_->skipped_steps(); }
  /// Returns the bytes that this rank holds, now and at peak.
  [[nodiscard]] observe::MemoryLedger memory() const { return engine_->account()->ledger(); }
  /// Counts bytes that a forward pass keeps for its backward pass, as activations of `memory()`, until the result is
  /// destroyed. The layers of `distx::layers` call it. Local.
  [[nodiscard]] observe::CountedMemory count_activations(std::size_t bytes) {
    if constexpr (Alone)
      return {};
    else
      return {engine_->account(), observe::MemoryKind::activations, bytes};
  }

 protected:
  friend struct detail::TrainingAccess;

  TrainingMethods() = default;
  /// @param part_of_model  whether the parameters are this rank's part of a model
  template <class C, class Optimizer>
  TrainingMethods(C& comm, const ParameterList<space>& parameters, const Optimizer& optimizer,
                  const DataParallelOptions& options, const here& location, bool part_of_model = false,
                  stream default_stream = {})
      : engine_(detail::make_engine<space>(AnyCommunicator<space>(comm.share()), parameters,
                                           detail::any_optimizer<space>(optimizer), policies(part_of_model), options,
                                           location)),
        stream_(default_stream) {
    if constexpr (replicates)
      if (!part_of_model)
        engine_.replicate(
            [parameters, kept = std::make_shared<const Optimizer>(optimizer), options = DataParallelOptions(options),
             policies = engine_->policies()](AnyCommunicator<space>& ranks, const here& line) mutable {
              options.broadcast_from = 0;
              options.stage.reset();  // it is in the policies
              detail::forget_shards(detail::ParameterListAccess::entries(parameters));
              return detail::make_engine<space>(ranks.share(), parameters, detail::any_optimizer<space>(*kept),
                                                policies, options, line);
            },
            location);
  }
  /// Returns the stream of a call.
  [[nodiscard]] stream on(const std::optional<stream>& after) const { return after.value_or(stream_); }

  static constexpr detail::TrainingPolicies policies(bool part_of_model) {
    auto values = detail::policies_of<Policies...>.values;
    values.part_of_model = part_of_model;
    return values;
  }

  auto check_gradient() {
    if constexpr (Alone)
      return nullptr;
    else
      return engine_->check_gradient();
  }
  void ready_one(const OnStream& after, const detail::ReadyArgument& parameters) {
    if constexpr (!Alone)
      parameters.for_each([&](const void* identity, bool) { engine_->ready(identity, after.on, after.location); });
  }
  /// Adds the units of owned parameters to a scope; borrowed ones are whole at every stage.
  void add_unsharded(scope& units, const OnStream& after, const detail::ReadyArgument& parameters) {
    if constexpr (!Alone && (stage == 3 || stage == Dynamic))
      if (engine_->shards_weights())
        parameters.for_each([&](const void* identity, bool owned) {
          if (owned) engine_->unshard(units, identity, after.on, after.location);
        });
  }

  detail::EngineOwner<space> engine_{};
  [[no_unique_address]] stream stream_{};  // of calls without one
};

}  // namespace distx::inline DISTX_ABI
