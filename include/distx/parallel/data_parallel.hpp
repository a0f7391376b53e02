// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/detail/engine/training.hpp"
#include "distx/parallel/exponential_average.hpp"
#include "distx/parallel/policies.hpp"
#include "distx/parallel/unsharded.hpp"

namespace distx {

namespace detail {

template <class A>
inline constexpr bool is_parameter_ref = false;
template <class T, class S>
inline constexpr bool is_parameter_ref<ParameterRef<T, S>> = true;
template <class A>
inline constexpr bool is_parameter = false;
template <class T, class S>
inline constexpr bool is_parameter<Parameter<T, S>> = true;

template <class A>
inline constexpr bool is_parameter_pointer =
    std::is_pointer_v<A> && is_parameter<std::remove_cv_t<std::remove_pointer_t<A>>>;

template <class A>
concept RangeOfRefs = std::ranges::range<A> && is_parameter_ref<std::ranges::range_value_t<A>>;

/// A range of what `ready` takes.
template <class A>
concept ListOfReady = std::ranges::range<A> && !FloatingElement<std::remove_cv_t<std::ranges::range_value_t<A>>>;

template <class C, class Space>
concept CommunicatorIn = Communicator<C> && std::same_as<typename C::space, Space>;

template <class A>
inline constexpr bool always_false = false;

/// Whether there are operations on the space's memory for such an optimizer: elsewhere than on the host's, for one
/// whose `update` is one element's alone.
template <class Optimizer, class Space>
concept UpdatesIn = ShardableOptimizer<Optimizer> && (HostAccessible<Space> || ElementwiseOptimizer<Optimizer>);

}  // namespace detail

/// Trains one model on all ranks: each computes gradients on its own part of the batch, and all make the same update
/// with the average of all ranks' gradients.
///
/// It is made collectively: the ranks' parameters and options are compared, weights and buffers become those of rank
/// `broadcast_from`, and the communicator and the optimizer are taken over, the one shared, the other copied. In each
/// step every rank calls `ready` for its parameters as their gradients become final, in any order (at stage 3 in one
/// order on all ranks), and then `step`, or `reduce`, `update` and `gather`. Gradients belong to the training from
/// `ready` to `gather`. An error on one rank revokes the communicator: every rank ends in an error. It is used by one
/// thread, and outlives its scopes' use. Two trainings that take turns in `ready`, other turns on other ranks, have a
/// communicator each: `split` gives another.
///
/// Where work is enqueued on streams, so is the training's own: each call takes the stream in whose order its effects
/// are, and comes behind the steps, or parts of steps, before it, on whatever streams. The host waits where a step
/// needs a number of all gradients: to clip, to scale losses, or to allow unused parameters. The streams outlive the
/// training; what writes the first weights need not be done when it is made.
///
/// A model that asks for its gradients by `gradient`, and reads its weights in the scopes of `unshard`, is one text for
/// all stages; `unshard` is collective at stage 3, and makes its calls in the same order on every rank, whose scopes
/// end in the same order too.
///
/// The optimizer is of one kind: what an ElementwiseOptimizer or a NormOptimizer updates is cut anywhere, what a
/// MatrixOptimizer updates, alone or in a Mixed, is dealt out whole.
///
/// Policies, in any order: ZeRO<0> to ZeRO<3> or ZeRO<Dynamic>, Accumulate<Local> or Accumulate<Sharded>,
/// Precision<Wire, Master>, Hybrid, On<Space>.
template <class... Policies>
class DataParallel {
  static_assert(detail::diagnose_policies<Policies...>());

 public:
  using space = space_of_policies<Policies...>;
  using stream = typename space::stream;
  using here = std::source_location;
  using scope = Unsharded<space>;
  static constexpr int stage = detail::stage_of<Policies...>;
  static constexpr detail::Accumulation accumulation = detail::accumulation_of<Policies...>();

  /// Collective.
  /// @throws MismatchError that names the parameter where the ranks' models differ; Error for bad options; MemoryError
  ///   on every rank where one has too little memory
  template <class C, class Optimizer>
    requires detail::CommunicatorIn<C, space> && detail::UpdatesIn<Optimizer, space>
  DataParallel(C& comm, const ParameterList<space>& parameters, const Optimizer& optimizer,
               const DataParallelOptions& options = {}, const here& location = here::current())
      : training_(std::make_unique<detail::Training<space>>(AnyCommunicator<space>(comm.share()), parameters.entries(),
                                                            detail::any_optimizer<space>(optimizer),
                                                            policies(options, comm, location), options, location)) {}

  template <class C, class Parameters, class Optimizer>
    requires(!detail::CommunicatorIn<C, space> || !detail::UpdatesIn<Optimizer, space> ||
             !std::convertible_to<const Parameters&, ParameterList<space>> ||
             (stage >= 2 && detail::RangeOfRefs<Parameters>))
  DataParallel(C&, const Parameters&, const Optimizer&, const DataParallelOptions& = {}, const here& = {}) {
    static_assert(Communicator<C>, "distx::DataParallel: the first argument is no Communicator");
    if constexpr (Communicator<C>)
      static_assert(std::same_as<typename C::space, space>,
                    "distx::DataParallel: the communicator moves another memory space than the one trained in: name "
                    "its space among the policies, On<Space>");
    static_assert(std::convertible_to<const Parameters&, ParameterList<space>>,
                  "distx::DataParallel: the second argument is no list of parameters: pass a range of ParameterRef "
                  "(made by distx::ref) or of Parameter in this memory space");
    static_assert(
        !detail::UpdatesOneNumber<Optimizer>,
        "distx::DataParallel: the optimizer's update accepts one number only: make it a template of the "
        "number's type, 'template <class V> static constexpr void update(const auto& coefficients, V& weight, "
        "V gradient, V& state...)'");
    static_assert(ShardableOptimizer<Optimizer> || detail::UpdatesOneNumber<Optimizer>,
                  "distx::DataParallel: the third argument is no optimizer that can be sharded: one of the concepts "
                  "ElementwiseOptimizer, NormOptimizer and MatrixOptimizer says what it needs, and no two together; "
                  "Mixed makes one of two");
    static_assert(detail::UpdatesIn<Optimizer, space> || !ShardableOptimizer<Optimizer>,
                  "distx::DataParallel: an optimizer that looks at whole parameters (LAMB, Muon, Mixed) computes in "
                  "the host's memory only: take an ElementwiseOptimizer, AdamW or SGD, on a GPU");
    static_assert(stage < 2 || !detail::RangeOfRefs<Parameters>,
                  "distx::DataParallel: stages 2 and 3 of ZeRO decide when a gradient has memory, so they cannot "
                  "borrow it: make the parameters distx::Parameter, or name ZeRO<0> or ZeRO<1>");
  }

  /// @name A parameter's memory, as it is now
  /// @{
  /// @throws Error at stage 3, outside the scopes of `unshard`
  template <FloatingElement T>
  [[nodiscard]] Span<T, space> value(const Parameter<T, space>& parameter) const {
    return parameter.value();
  }
  template <FloatingElement T>
  [[nodiscard]] Span<T, space> value(const ParameterRef<T, space>& parameter) const {
    return parameter.weight;
  }
  /// The gradient to add to: zeros when it is first asked for in a step.
  /// @throws Error after `ready`, until the next step; where it is frozen
  template <FloatingElement T>
  [[nodiscard]] Span<T, space> gradient(const Parameter<T, space>& parameter, stream after = {}) {
    training_->demand_gradients("gradient");
    return parameter.gradient(after);
  }
  template <FloatingElement T>
  [[nodiscard]] Span<T, space> gradient(const ParameterRef<T, space>& parameter, stream after = {}) {
    training_->touch(parameter.weight.data(), after);
    return parameter.gradient;
  }
  /// @}

  /// Makes the weights of these parameters' units whole until the scope ends; takes what `ready` takes. At stage 3
  /// collective; it does nothing below.
  /// @throws MismatchError for what is not the training's
  template <class... Parameters>
    requires(sizeof...(Parameters) > 0)
  [[nodiscard]] scope unshard(const Parameters&... parameters) {
    scope units;
    if constexpr (may_shard_weights)
      if (training_->units() != nullptr) (unshard_one(units, stream{}, parameters), ...);
    return units;
  }
  /// The same for what is enqueued on a stream until the scope ends.
  template <class... Parameters>
    requires(sizeof...(Parameters) > 0)
  [[nodiscard]] scope unshard_after(stream after, const Parameters&... parameters) {
    scope units;
    if constexpr (may_shard_weights)
      if (training_->units() != nullptr) (unshard_one(units, after, parameters), ...);
    return units;
  }
  /// A scope in which weights are used without gradients, and with an order of `unshard` of its own.
  [[nodiscard]] Evaluation<space> evaluate() { return training_->evaluate(); }

  /// A micro-batch of a step begins, its last one or not; its gradients are added to those of the ones before. Every
  /// parameter is `ready` in each. Collective, as far as messages of the micro-batch before are still to be sent.
  /// @throws MismatchError where the one before was declared the last
  [[nodiscard]] MicroBatch micro_batch(bool last, stream after = {}, const here& location = here::current())
    requires(accumulation != detail::Accumulation::none)
  {
    training_->begin_micro_batch(last, after, location);
    return {};
  }

  /// The gradients of these are final on this rank: ParameterRefs, Parameters, the weights' own arrays, or lists of
  /// such.
  /// @throws MismatchError for what is not a parameter, is frozen, or is ready already
  template <class... Ready>
    requires(sizeof...(Ready) > 0)
  void ready(const Ready&... parameters) {
    (ready_one(stream{}, parameters), ...);
  }
  /// The same, once the work enqueued on `after` is done.
  template <class... Ready>
  void ready_after(stream after, const Ready&... parameters) {
    (ready_one(after, parameters), ...);
  }

  /// `reduce`, `update` and `gather`. Collective.
  /// @throws MismatchError where the learning rate is not finite or a parameter has no gradient
  void step(const StepOptions& options, stream after = {}, const here& location = here::current()) {
    training_->step(options, after, location);
  }
  /// Gradients become the average of all ranks', clipped; a rank without one counts as zero. Collective.
  void reduce(stream after = {}, const here& location = here::current()) { training_->reduce(after, location); }
  /// Weights become the optimizer's, where any rank had a gradient. Collective for a NormOptimizer.
  void update(const StepOptions& options, stream after = {}, const here& location = here::current()) {
    training_->update(options, after, location);
  }
  /// Ends the step: every rank's weights become those of the ranks that have updated them. Collective.
  void gather(stream after = {}, const here& location = here::current()) { training_->gather(after, location); }

  /// What this rank has to update between `reduce` and `gather`, for those who do so with a kernel of their own.
  ///
  /// No segment crosses a parameter, all ranks' together are all weights, and none is two ranks' (at stage 0 all are
  /// every rank's).
  /// @throws MismatchError before `reduce`
  [[nodiscard]] std::vector<Segment<space>> owned(const here& location = here::current()) {
    return training_->owned(location);
  }

  /// Calls f(name, values) for every parameter, in the order of the list, with whole values: `Span<const AnyElement>`,
  /// which hold during the call. At stage 3 one unit after another is gathered. Collective, between steps.
  template <std::invocable<const std::string&, Span<const AnyElement, space>> F>
  void for_each_full_weight(F&& f, stream after = {}, const here& location = here::current()) {
    training_->for_each_full_weight(std::ref(f), after, location);
  }
  /// Ends the training, and leaves whole weights in its Parameters. Collective, between steps.
  void release(stream after = {}, const here& location = here::current()) { training_->release(after, location); }
  /// An exponential moving average of the weights, which begins with them as they are.
  /// @throws MismatchError unless decay is at least 0 and below 1
  [[nodiscard]] ExponentialAverage<space> average(double decay, stream after = {},
                                                  const here& location = here::current()) {
    return ExponentialAverage<space>(*training_, decay, after, location);
  }

  /// For those who build on it. This training's parameters are some of a model's, of which the trainings of the ranks
  /// in `others` have the rest: the norm is that of all, and counts those parameters that this rank is told to count.
  void count_in_norm(AnyCommunicator<space> others, std::vector<bool> counts) {
    training_->count_in_norm(std::move(others), std::move(counts));
  }
  /// For those who build on it: adds a parameter's unit to a scope of `unshard`.
  template <class A>
  void hold_units(scope& units, const A& parameter, stream after = {}) {
    if constexpr (may_shard_weights)
      if (training_->units() != nullptr) unshard_one(units, after, parameter);
  }

  /// The norm of all gradients in the last step before they were clipped; 0 where `.clip_norm` is not set.
  [[nodiscard]] double gradient_norm() const noexcept { return training_->gradient_norm(); }
  /// By what a loss is to be multiplied before the backward pass: 1 unless Precision is named, and some parameter is of
  /// float16.
  [[nodiscard]] double loss_scale() const noexcept { return training_->scaler().scale(); }
  /// How many steps changed nothing, since a scaled loss made gradients that are not finite.
  [[nodiscard]] std::uint64_t skipped_steps() const noexcept { return training_->scaler().skipped(); }
  /// The bytes that this rank holds, now and at the most so far.
  [[nodiscard]] MemoryLedger memory() const { return training_->memory(); }
  /// How many reductions a step is made of.
  [[nodiscard]] std::size_t bucket_count() const noexcept { return training_->bucket_count(); }

 private:
  static constexpr bool may_shard_weights = stage == 3 || stage == Dynamic;

  template <class C>
  static detail::TrainingPolicies policies(const DataParallelOptions& options, C& comm, const here& location) {
    const auto fail = [&](const std::string& words) {
      comm.revoke(words);
      throw MismatchError(words, {"DataParallel", comm.backend(), comm.rank(), comm.size(), location});
    };
    if (stage != Dynamic && options.stage)
      fail(".stage is set, and the policy is ZeRO<" + std::to_string(stage) + ">: name ZeRO<Dynamic>, or leave it out");
    if (stage == Dynamic && !(options.stage && *options.stage >= 0 && *options.stage <= 3))
      fail(options.stage ? ".stage = " + std::to_string(*options.stage) + ": ZeRO has the stages 0 to 3"
                         : std::string("the policy is ZeRO<Dynamic>: set .stage, 0 to 3"));
    const int chosen = stage == Dynamic ? *options.stage : stage;
    if (chosen >= 2 && accumulation == detail::Accumulation::local)
      fail("Accumulate<Local> keeps whole gradients, which stage " + std::to_string(chosen) +
           " of ZeRO does not have: name Accumulate<Sharded>");
    if (chosen == 0 && detail::hybrid_named<Policies...>)
      fail("Hybrid shares out inside groups what stage 0 of ZeRO does not share out: set .stage to 1, 2 or 3");
    return {chosen, accumulation, detail::wire_of_policies<Policies...>(), detail::hybrid_named<Policies...>};
  }

  template <class A>
  void ready_one(stream after, const A& parameter) {
    if constexpr (detail::is_parameter_ref<A>)
      training_->ready(parameter.weight.data(), after);
    else if constexpr (detail::is_parameter<A>)
      training_->ready(identity_of(parameter), after);
    else if constexpr (detail::is_parameter_pointer<A>)
      training_->ready(identity_of(*parameter), after);
    else if constexpr (detail::ListOfReady<A>)
      for (const auto& each : parameter) ready_one(after, each);
    else if constexpr (detail::Contiguous<const A>)
      training_->ready(detail::contiguous(parameter).data(), after);
    else
      static_assert(detail::always_false<A>,
                    "distx: ready takes ParameterRefs, Parameters, the arrays of weights, or lists of those");
  }
  template <class A>
  void unshard_one(scope& units, stream after, const A& parameter) {
    if constexpr (detail::is_parameter<A>)
      training_->guarded([&] {
        units.hold(training_->units(), training_->unit_of(identity_of(parameter), after), after, training_->location());
      });
    else if constexpr (detail::is_parameter_pointer<A>)
      unshard_one(units, after, *parameter);
    else if constexpr (detail::ListOfReady<A>)
      for (const auto& each : parameter) unshard_one(units, after, each);
    else
      static_assert(detail::is_parameter_ref<A> || detail::Contiguous<const A>,  // whole, wherever they are
                    "distx: unshard takes what ready takes");
  }

  std::unique_ptr<detail::Training<space>> training_;
};

}  // namespace distx
