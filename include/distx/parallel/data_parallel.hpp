// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/policies.hpp"
#include "distx/parallel/training.hpp"

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

/// A range of what `ready` takes.
template <class A>
concept ListOfReady = std::ranges::range<A> && !FloatingElement<std::remove_cv_t<std::ranges::range_value_t<A>>>;

template <class C, class Space>
concept CommunicatorIn = Communicator<C> && std::same_as<typename C::space, Space>;

template <class A>
inline constexpr bool always_false = false;

}  // namespace detail

/// Trains one model on all ranks: each has all of it, computes gradients on its own part of the batch, and makes the
/// same update with the average of all ranks' gradients.
///
/// It is made collectively: the ranks' parameters and options are compared, weights and buffers become those of rank
/// `broadcast_from`, and the communicator and the optimizer are taken over, the one shared, the other copied. In each
/// step every rank calls `ready` for its parameters as their gradients become final, in any order, and then `step`, or
/// `reduce`, `update` and `gather`. Gradients belong to the training from `ready` to `gather`. An error on one rank
/// revokes the communicator: every rank ends in an error. It is used by one thread.
///
/// Policies: ZeRO<0>, On<Space>; their order does not matter.
template <class... Policies>
class DataParallel {
  static_assert(detail::diagnose_policies<Policies...>());

 public:
  using space = space_of_policies<Policies...>;
  using stream = typename space::stream;
  using here = std::source_location;

  /// Collective.
  /// @throws MismatchError that names the parameter where the ranks' models differ; Error for bad options
  template <class C, class Optimizer>
    requires detail::CommunicatorIn<C, space> && ElementwiseOptimizer<Optimizer>
  DataParallel(C& comm, const ParameterList<space>& parameters, const Optimizer& optimizer,
               const DataParallelOptions& options = {}, const here& location = here::current())
      : training_(std::make_unique<detail::Training<space>>(AnyCommunicator<space>(comm.share()), parameters.entries(),
                                                            erased(optimizer), options, location)) {}

  template <class C, class Parameters, class Optimizer>
    requires(!detail::CommunicatorIn<C, space> || !ElementwiseOptimizer<Optimizer> ||
             !std::convertible_to<const Parameters&, ParameterList<space>>)
  DataParallel(C&, const Parameters&, const Optimizer&, const DataParallelOptions& = {}, const here& = {}) {
    static_assert(Communicator<C>, "distx::DataParallel: the first argument is no Communicator");
    if constexpr (Communicator<C>)
      static_assert(std::same_as<typename C::space, space>,
                    "distx::DataParallel: the communicator moves another memory space than the one trained in: name "
                    "its space among the policies, On<Space>");
    static_assert(std::convertible_to<const Parameters&, ParameterList<space>>,
                  "distx::DataParallel: the second argument is no list of parameters: pass a range of ParameterRef "
                  "(made by distx::ref) or of Parameter in this memory space");
    static_assert(ElementwiseOptimizer<Optimizer>,
                  "distx::DataParallel: the third argument is no optimizer that can be sharded: ElementwiseOptimizer "
                  "says what it needs");
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
    training_->check_step(options, "step", location);
    training_->reduce(after, location);
    training_->update(options, after, location);
    training_->gather(location);
  }
  /// Gradients become the average of all ranks'; a rank without one counts as zero. Collective.
  void reduce(stream after = {}, const here& location = here::current()) { training_->reduce(after, location); }
  /// Weights become the optimizer's, where any rank had a gradient.
  void update(const StepOptions& options, stream after = {}, const here& location = here::current()) {
    training_->update(options, after, location);
  }
  /// Ends the step; without `update`, the weights stay as the user has made them. Collective.
  void gather(stream = {}, const here& location = here::current()) { training_->gather(location); }

  /// How many reductions a step is made of.
  [[nodiscard]] std::size_t bucket_count() const noexcept { return training_->bucket_count(); }

 private:
  template <class Optimizer>
  static typename detail::Training<space>::Optimizer erased(const Optimizer& optimizer) {
    return {std::to_string(detail::type_fingerprint<Optimizer>()), DecaysWeights<Optimizer>,
            [&optimizer] { validate_optimizer(optimizer); },
            [&optimizer](ElementType type, std::size_t elements) {
              return detail::make_shard_update<space>(optimizer, type, elements);
            }};
  }

  template <class A>
  void ready_one(stream after, const A& parameter) {
    if constexpr (detail::is_parameter_ref<A>) training_->ready(parameter.weight.data(), after);
    else if constexpr (detail::is_parameter<A>) training_->ready(identity_of(parameter), after);
    else if constexpr (detail::ListOfReady<A>) for (const auto& each : parameter) ready_one(after, each);
    else if constexpr (detail::Contiguous<const A>) training_->ready(detail::contiguous(parameter).data(), after);
    else static_assert(detail::always_false<A>,
                       "distx: ready takes ParameterRefs, Parameters, the arrays of weights, or lists of those");
  }

  std::unique_ptr<detail::Training<space>> training_;
};

}  // namespace distx
