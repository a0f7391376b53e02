// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/training_methods.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

template <class C, class Space>
concept CommunicatorIn = Communicator<C> && std::same_as<typename C::space, Space>;

/// Whether `A` is a training, which checkpoints save.
template <class A>
inline constexpr bool is_training = false;

}  // namespace detail

/// Trains one model on all ranks: each rank computes gradients on its own part of the batch, and all ranks make the
/// same update with the gradients averaged across ranks.
///
/// Each step, every rank calls `ready` for each parameter when its gradient is final, and then `step`, or
/// `reduce_gradients`, `update_weights` and `gather_weights`. Gradients belong to the training from `ready` until the
/// step ends; from stage 1 of ZeRO on, their values are unspecified after it, because a step may not store averages.
/// `ready` takes any order below stage 3; at stage 3 it is called in the same order on every rank.
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
/// MatrixOptimizer, alone or in a Mixed, are assigned whole to a rank. On GPUs the host waits for the norms of each
/// bucket or matrix, and products are cuBLAS's, of <distx/cuda_blas.hpp>.
///
/// @tparam Policies  any of, in any order: ZeRO<0> to ZeRO<3> or ZeRO<Dynamic>, Accumulate<Local> or
///   Accumulate<Sharded>, Reproducible<V>, Precision<Communication>, Compress<Gradients, Weights>, Hybrid, Replicate,
///   On<Space>
/// @code
/// distx::DataParallel<distx::ZeRO<1>> training(comm, parameters, distx::AdamW{.weight_decay = 0.01});
/// …
/// training.ready(layer.weight, layer.bias);
/// training.step({.learning_rate = 3e-4});
/// @endcode
template <class... Policies>
class DataParallel : public TrainingMethods<false, Policies...> {
  using Methods = TrainingMethods<false, Policies...>;

 public:
  using Methods::replicates;
  using typename Methods::here;
  using typename Methods::space;
  using typename Methods::stream;

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
    requires detail::CommunicatorIn<C, space> && ShardableOptimizer<Optimizer>
  DataParallel(C& comm, const ParameterList<space>& parameters, const Optimizer& optimizer,
               const DataParallelOptions& options = {}, const here& location = here::current())
      : Methods(comm, parameters, optimizer, options, location) {}

  /// Diagnoses wrong arguments with one compile error.
  template <class C, class Parameters, class Optimizer>
    requires(!detail::CommunicatorIn<C, space> || !ShardableOptimizer<Optimizer> ||
             !std::convertible_to<const Parameters&, ParameterList<space>> ||
             (Methods::stage >= 2 && detail::RangeOfRefs<Parameters>) ||
             (detail::policies_of<Policies...>.values.communication_type.has_value() &&
              detail::RangeOfFullPrecision<Parameters>))
  DataParallel(C&, const Parameters&, const Optimizer&, const DataParallelOptions& = {}, const here& = {}) {
    static_assert(Communicator<C>, "distx::DataParallel: the first argument is not a Communicator");
    if constexpr (Communicator<C>)
      static_assert(std::same_as<typename C::space, space>,
                    "distx::DataParallel: the communicator's memory space is not the training's; add the policy "
                    "On<Space>");
    static_assert(std::convertible_to<const Parameters&, ParameterList<space>>,
                  "distx::DataParallel: the second argument is not a list of parameters; pass a range of ParameterRef "
                  "(made by distx::ref) or of Parameter in the training's memory space");
    static_assert(
        !detail::UpdatesOneNumber<Optimizer>,
        "distx::DataParallel: the optimizer's update must be a template over the number type: 'template <class V> "
        "static constexpr void update(const auto& coefficients, V& weight, V gradient, V& state...)'");
    static_assert(ShardableOptimizer<Optimizer> || detail::UpdatesOneNumber<Optimizer>,
                  "distx::DataParallel: the third argument is not an optimizer; it must satisfy exactly one of "
                  "ElementwiseOptimizer, NormOptimizer and MatrixOptimizer, or be a Mixed");
    static_assert(Methods::stage < 2 || !detail::RangeOfRefs<Parameters>,
                  "distx::DataParallel: ZeRO<2> and ZeRO<3> allocate gradients themselves and cannot borrow them; make "
                  "the parameters distx::Parameter, or use ZeRO<0> or ZeRO<1>");
    static_assert(!detail::policies_of<Policies...>.values.communication_type.has_value() ||
                      !detail::RangeOfFullPrecision<Parameters>,
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

  /// Rebuilds the training on `comm` after ranks failed or joined. Call it again if another rank fails meanwhile.
  /// Collective over `comm`, which has ranks of this training, in their order, and then those that join: on these, the
  /// constructor takes part in this call, with the same parameters, optimizer and options as at the beginning, and
  /// receives the state. All scopes of `unshard` must have ended.
  ///
  /// The state becomes that of the last step that all ranks have ended: on a rank where `step` has returned it is not
  /// an earlier one. Weights, optimizer state and counters have the bits of a training on these ranks that has loaded a
  /// checkpoint of that step; at stage 0, buffers are those of the first surviving rank.
  /// `.broadcast_from` becomes 0.
  /// @return the number of steps that the training has made, also skipped ones, the same on every rank; it is the
  ///   index of the next step
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
    return this->engine_.recover(AnyCommunicator<space>(comm.share()), location);
  }

  /// Returns the number of reductions in a step.
  [[nodiscard]] std::size_t bucket_count() const noexcept { return this->engine_->bucket_count(); }
};

namespace detail {

template <class... Policies>
inline constexpr bool is_training<DataParallel<Policies...>> = true;

}  // namespace detail

}  // namespace distx::inline DISTX_ABI
