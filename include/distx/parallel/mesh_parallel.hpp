// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/core/detail/revoke_on_exception.hpp"
#include "distx/core/detail/shortest.hpp"
#include "distx/parallel/detail/engine/checks/check_training.hpp"
#include "distx/parallel/detail/engine/checks/consistency.hpp"
#include "distx/parallel/tensor_gradient.hpp"
#include "distx/parallel/tensor_parameter.hpp"
#include "distx/tensor.hpp"
#include "distx/training.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

/// Whether the optimizer can update a mesh's weights in the space: outside the host's, only elementwise ones can.
template <class Optimizer, class Space>
concept UpdatesIn = ShardableOptimizer<Optimizer> && (HostAccessible<Space> || ElementwiseOptimizer<Optimizer>);

/// The copies that a rank has of a mesh training's state, and what they are of.
template <MemorySpace Space>
struct MeshReplicas {
  /// @throws InvalidArgument if there are copies of other parts of the model than this rank has
  void set_parts(const TrainingState<Space>& state, const ErrorContext& context) {
    std::vector<std::string> now;
    for (const auto& array : state.arrays)
      now.push_back("'" + array.name + "' of " + std::string(name_of(array.values.type())) + ", the part of " +
                    shape_text(array.part_shape) + " at " + shape_text(array.part_begin) + " of " +
                    shape_text(array.shape));
    now.emplace_back("nothing more");
    if (const auto [mine, copied] = std::mismatch(now.begin(), now.end(), parts.begin(), parts.end());
        !kept.empty() && mine != now.end())
      throw InvalidArgument("this rank has " + *mine + ", but copies of " + *copied +
                                "; keep the model, the lengths of the other axes and this rank's coordinates on them, "
                                "or load the last checkpoint",
                            context);
    parts = std::move(now);
  }

  KeptReplicas<Space> kept{};
  std::vector<std::string> parts{};  // of the arrays
};

}  // namespace detail

/// Trains a model whose weights are distributed over a mesh: a DataParallel of each rank's parts along the axis `Data`.
///
/// `ready(weight, gradient)` sums the gradient over the other axes where its type is Partial; along the data axis
/// gradients are averaged, since each coordinate there has the mean loss of another part of the batch. ZeRO shards
/// along the data axis. The norm of all gradients counts each weight once, wherever it is replicated. Policies, options
/// and the order of calls are DataParallel's. Everything is ordered by the mesh's stream, as operations on tensors are.
/// An error on one rank revokes the mesh's communicators.
///
/// Not supported: `announce_batch`, for which a coordinate without a batch would have to join the reductions of Partial
/// gradients too.
///
/// The optimizer is an ElementwiseOptimizer or, in the host's memory, one that needs whole weights: norms and matrices
/// are those of whole weights. With other axes, such an optimizer updates all weights once all gradients are reduced. A
/// NormOptimizer makes two small reductions over these axes and two over the data axis, if that shards. A
/// MatrixOptimizer, alone or in a Mixed, assigns each matrix to one rank of the mesh: its direction is reduced to that
/// rank, which transforms it and broadcasts it, in the type in which the optimizer computes.
///
/// @tparam Data  the axis of the mesh along which batches are split
/// @tparam Policies  those of DataParallel
template <class Data, class... Policies>
class MeshParallel : private TrainingMethods<false, Policies...> {
  using Methods = TrainingMethods<false, Policies...>;
  static_assert(Methods::virtual_ranks == 0,
                "distx::MeshParallel: Reproducible supports DataParallel only, because sums along other axes of the "
                "mesh depend on their lengths; remove it");
  static_assert(!detail::policies_of<Policies...>.hooks_gradients,
                "distx::MeshParallel: a GradientHook supports DataParallel only, because it sees parts of weights; use "
                "Compress<bfloat16>, or remove Compress");
  using here = std::source_location;

  /// This rank's part of a weight, null if it is empty, and the line of the call.
  struct WeightArgument {
    template <DistributedTensor W>
    WeightArgument(const W& weight, const here& line = here::current()) : location(line) {  // NOLINT: every weight
      if (const auto* const own = detail::TensorAccess::part(weight); own != nullptr) part.emplace(*own, line);
    }
    here location;
    std::optional<detail::ReadyArgument> part{};
  };

 public:
  using typename Methods::scope;
  using typename Methods::space;
  /// The copies that a rank has of the state of a training with Replicate, which outlive the training. Empty at first.
  using replicas = detail::MeshReplicas<space>;

  /// Constructs a training. Collective over the mesh.
  /// @throws InvalidArgument for a weight on another mesh, or sharded over the data axis; otherwise as DataParallel
  template <detail::MeshType MeshT, detail::UpdatesIn<space> Optimizer>
  MeshParallel(const MeshT& mesh, const TensorParameterList<space>& parameters, const Optimizer& optimizer,
               const DataParallelOptions& options = {}, const here& location = here::current())
      : MeshParallel(mesh, parameters, optimizer, options, nullptr, location) {}
  /// Constructs the training of one stage of a pipeline: the norm of all gradients counts those of the other stages
  /// too. Collective over the mesh and over `stages`. An error on one rank revokes `stages` too.
  /// @param stages  along the pipeline: the ranks that hold the other stages
  /// @throws MismatchError on every rank of `stages` if options that concern all stages differ
  template <detail::MeshType MeshT, detail::UpdatesIn<space> Optimizer>
  MeshParallel(const MeshT& mesh, const TensorParameterList<space>& parameters, const Optimizer& optimizer,
               const DataParallelOptions& options, AnyCommunicator<space>& stages,
               const here& location = here::current())
      : MeshParallel(mesh, parameters, optimizer, options, &stages, location) {}
  /// Diagnoses an optimizer that does not support distributed weights with one compile error.
  template <detail::MeshType MeshT, class Optimizer>
    requires(!detail::UpdatesIn<Optimizer, space>)
  MeshParallel(const MeshT&, const TensorParameterList<space>&, const Optimizer&, const DataParallelOptions& = {},
               const here& = {})
      : MeshParallel(Diagnosed()) {
    static_assert(!ShardableOptimizer<Optimizer>,
                  "distx::MeshParallel: optimizers of whole weights (LAMB, Muon, Mixed) support host memory only; use "
                  "an ElementwiseOptimizer, such as AdamW or SGD, on a GPU");
    static_assert(ShardableOptimizer<Optimizer>,
                  "distx::MeshParallel: the third argument is not an optimizer; pass an ElementwiseOptimizer, such as "
                  "distx::AdamW{}");
  }
  /// Diagnoses a forgotten optimizer with one compile error.
  template <detail::MeshType MeshT>
  MeshParallel(const MeshT&, const TensorParameterList<space>&) : MeshParallel(Diagnosed()) {
    static_assert(!detail::MeshType<MeshT>,
                  "distx::MeshParallel: the optimizer is missing; pass distx::AdamW{}, or another one, after the "
                  "parameters");
  }

  /// Adds `gradient` to the gradient of `weight`, reduced over the axes where it is Partial, and declares it final.
  ///
  /// Collective over the axes that it reduces, in the same order on every rank.
  /// @param gradient  a distributed tensor of the weight's extents, with a layout that GradientOf allows, of the
  ///   weight's element type, or of float for a 16-bit weight: then the reduced gradient is rounded
  /// @throws InvalidArgument if extents or meshes differ; otherwise as DataParallel::ready
  template <class W, class G>
    requires detail::GradientOf<G, W, Data>
  void ready(const W& weight, const G& gradient, const here& location = here::current()) {
    using Facts = detail::GradientFacts<Data, detail::layout_of<W>, detail::layout_of<G>, detail::mesh_of<W>>;
    guarded([&] {
      if (!(weight.mesh() == gradient.mesh()) || weight.extents() != gradient.extents())
        throw InvalidArgument(
            "'" + weight.name() + "' has extents " + detail::to_string(weight.extents()) + ", its gradient " +
                detail::to_string(gradient.extents()) +
                ", or they are on different meshes; pass the gradient of this weight",
            {.operation = "ready", .rank = mesh_.rank, .size = mesh_.shape.ranks(), .location = location});
      if constexpr (std::is_same_v<typename Facts::reduced, detail::layout_of<G>>) {
        add_gradient(weight, gradient, location);
      } else {
        add_gradient(weight, detail::reduced_to(std::type_identity<typename Facts::reduced>(), gradient, location),
                     location);
      }
    });
  }
  template <class W, class G>
    requires(DistributedTensor<W> && !detail::GradientOf<G, W, Data>)
  void ready(const W&, const G&) {
    detail::diagnose_gradient<W, G, Data>();
  }
  template <DistributedTensor W>
  void ready(const W&) {
    static_assert(
        detail::always_false<W>,
        "distx: ready: the gradient is missing; pass ready(weight, gradient), because its type determines the "
        "axes over which it is reduced");
  }

  /// Makes weights whole along the data axis until the returned scope ends. @see DataParallel::unshard
  template <DistributedTensor... Ws>
  [[nodiscard]] scope unshard(const WeightArgument& weight, const Ws&... more) {
    scope all;
    const auto hold = [&](const WeightArgument& one) {
      if (one.part) this->add_unsharded(all, {mesh_.stream, weight.location}, *one.part);
    };
    guarded([&] { hold(weight), (hold(more), ...); });
    return all;
  }

  /// Begins to keep copies of the state in `copies`, and continues from those that are there: of an earlier training,
  /// which a loss of ranks has ended and which is destroyed, of the same model on another mesh. Collective over the
  /// mesh and the pipeline, before the first step. Load a checkpoint after it, whenever it returns 0.
  ///
  /// The data axis may have another length. The other axes keep theirs, and each rank its coordinates on them. Ranks
  /// without copies, which join, receive the state. It becomes that of the last step that all ranks have ended: on a
  /// rank where `step` has returned it is not an earlier one. Weights, optimizer state and counters have the bits of a
  /// training on this mesh that has loaded a checkpoint of that step. If no rank has copies, the training begins. A
  /// rank that a mesh has left out makes `copies` empty before it joins another one.
  /// @return the number of steps that the training has made, as DataParallel::recover does
  /// @throws InvalidArgument if this rank has copies of other parts of the model
  /// @throws CheckpointError on every rank if, at some coordinates on the other axes, no rank is left, or, at stages 1
  ///   to 3, a rank along the data axis and the next one are lost, or had no memory for a copy: make `copies` empty,
  ///   call this again, and load the last checkpoint
  /// @throws RankFailure, RevokedError or TimeoutError if further ranks are lost
  /// @code
  ///   using Training = distx::MeshParallel<Data, distx::ZeRO<2>, distx::Replicate>;
  ///   Training::replicas copies;  // before the loop, in which a loss ends the training, the model and the mesh
  ///   …
  ///   Training training(mesh, parameters, distx::AdamW{});
  ///   for (auto step = training.recover(copies); step < last; ++step) …
  /// @endcode
  std::uint64_t recover(replicas& copies, const here& location = here::current()) {
    static_assert(Methods::replicates,
                  "distx::MeshParallel: recover needs copies of the state; add the policy Replicate");
    guarded([&] {
      mesh_.stream.synchronize();  // the first weights may still be being written
      copies.set_parts(this->state(location),
                       {.operation = "recover", .rank = mesh_.rank, .size = mesh_.shape.ranks(), .location = location});
    });
    return detail::replicate(*this->engine_, copies.kept, location);
  }

  /// @name As DataParallel's, ordered by the mesh's stream if none is passed. Norms and numbers of skipped steps are
  /// those of the whole mesh, and of all stages. Of `owned`, `.parameter` is an index in the constructor's list, and
  /// `.offset` is in this rank's part of that weight; of `state`, each array's part is a box of the whole array.
  /// `for_each_full_weight` gathers one weight at a time over all axes of the mesh, row-major, and is collective over
  /// the mesh; of a pipeline, it passes the weights of this rank's stages. Of an average, each rank has the values that
  /// it updates. `capture` and `replay` are collective over the mesh: gradients that are Partial, and layers that
  /// communicate, are captured with the step.
  /// @{
  using Methods::capture;
  using Methods::count_activations;
  using Methods::ema;
  using Methods::evaluate;
  using Methods::for_each_full_weight;
  using Methods::gather_weights;
  using Methods::gradient_norm;
  using Methods::loss_scale;
  using Methods::memory;
  using Methods::micro_batch;
  using Methods::owned;
  using Methods::reduce_gradients;
  using Methods::release;
  using Methods::replay;
  using Methods::skipped_steps;
  using Methods::state;
  using Methods::step;
  using Methods::update_weights;
  /// @}

 private:
  friend struct detail::TrainingAccess;

  struct Diagnosed {};
  explicit MeshParallel(Diagnosed);  // not defined: for constructors that do not compile

  template <class MeshT, class Optimizer>
  MeshParallel(const MeshT& mesh, const TensorParameterList<space>& parameters, const Optimizer& optimizer,
               const DataParallelOptions& options, AnyCommunicator<space>* stages, const here& location)
      : Methods(made(mesh, parameters, optimizer, options, stages, location)),
        mesh_(detail::in_space<space>(detail::state_of(mesh))),
        stages_(stages == nullptr ? std::nullopt : std::optional(stages->share())) {
    guarded(mesh_, stages, [&] {
      constexpr detail::AxisSet others = ((1U << MeshT::axes) - 1) & ~(1U << MeshT::template index_of<Data>());
      // Shares the mesh, whose communicators and stream the engine uses until its end.
      detail::TrainingMesh<space> over{
          .revoke = [kept = MeshT(mesh), &state = mesh_](const std::string& message) { state.revoke(message); }};
      if (stages != nullptr) {
        check_stages(*stages, options, location);
        over.stages.emplace(stages->share());
        over.revoke = [of_mesh = std::move(over.revoke),
                       along = std::make_shared<AnyCommunicator<space>>(stages->share())](const std::string& message) {
          of_mesh(message);
          along->revoke(message);
        };
      }
      for (const auto& entry : detail::TensorAccess::entries(parameters)) {
        auto& listed = over.parameters.emplace_back(entry);
        for (std::size_t axis = 0; axis < MeshT::axes; ++axis)
          if ((others & ~entry.cutting) >> axis & 1U)
            listed.part.first = listed.part.first && mesh.coordinates()[axis] == 0;
        if (!entry.trained) continue;
        if (this->engine_->policies().has_master(entry.type)) listed.arrays.emplace_back("master");
        for (auto& name : detail::state_names<Optimizer>(entry.rows > 0)) listed.arrays.push_back(std::move(name));
      }
      if constexpr (others != 0) {
        over.across.emplace(mesh_.over(others).share());
        over.whole.emplace(mesh_.world.share());
      }
      over.optimizer = detail::describe_optimizer(optimizer);
      over.by_norms = NormOptimizer<Optimizer>;
      over.matrices = detail::matrix_transform<space>(optimizer);
      detail::join_mesh(*this->engine_, std::move(over));
    });
  }
  template <class MeshT, class Optimizer>
  static Methods made(const MeshT& mesh, const TensorParameterList<space>& parameters, const Optimizer& optimizer,
                      const DataParallelOptions& options, AnyCommunicator<space>* stages, const here& location) {
    auto& state = detail::in_space<space>(detail::state_of(mesh));
    const ErrorContext context{
        .operation = "MeshParallel", .rank = mesh.rank(), .size = mesh.size(), .location = location};
    std::optional<Methods> made;
    guarded(state, stages, [&] {
      std::vector<ElementType> trained;
      for (const auto& entry : detail::TensorAccess::entries(parameters)) {
        const auto fail = [&](const char* message) {
          throw InvalidArgument("'" + entry.name + "' " + message, context);
        };
        if (entry.mesh != &detail::state_of(mesh))
          fail("is on another mesh than the training; construct them from the same Mesh object");
        if (entry.cutting >> MeshT::template index_of<Data>() & 1U)
          fail("is sharded over the data axis; omit that axis from its layout, and use ZeRO to shard along it");
        if (entry.trained) trained.push_back(entry.type);
      }
      if (stages == nullptr)  // else another stage may have the parameters that a policy applies to
        detail::check_effects(trained, detail::policies_of<Policies...>.values, options, context);
      made.emplace(detail::TrainingAccess::make<Methods>(mesh.template along<Data, space>(),
                                                         detail::TensorAccess::parts(parameters), optimizer, options,
                                                         location, true, state.stream));
    });
    return std::move(*made);
  }
  template <class W, class G>
  void add_gradient(const W& weight, const G& gradient, const here& location) {
    const auto* const part = detail::TensorAccess::part(weight);
    if (part == nullptr) return;
    if constexpr (std::same_as<detail::value_of<G>, detail::value_of<W>>)
      add(mesh_.stream, Methods::gradient(*part), Span<const detail::value_of<G>, space>(gradient.local()));
    else
      add(mesh_.stream, Methods::gradient(*part), rounded<detail::value_of<W>>(gradient).span());
    this->ready_after({mesh_.stream, location}, *part);
  }
  template <class T, class G>
  static Buffer<T, space> rounded(const G& gradient) {
    const auto stream = gradient.mesh().template stream<space>();
    auto values = detail::buffer_on<T, space>(stream, gradient.local().size(), uninitialized);
    cast(stream, values.span(), Span<const detail::value_of<G>, space>(gradient.local()));
    return values;
  }
  static void check_stages(AnyCommunicator<space>& stages, const DataParallelOptions& options, const here& location) {
    detail::ConsistencyRecord record;
    record.add(".clip_norm of the stages", detail::shortest(options.clip_norm));
    record.add(".skip_nonfinite of the stages", options.skip_nonfinite ? "true" : "false");
    detail::check_consistency(
        stages, record, "pass the same options on every stage",
        {.operation = "MeshParallel", .rank = stages.rank(), .size = stages.size(), .location = location});
  }
  template <class F>
  static void guarded(detail::MeshStateIn<space>& mesh, AnyCommunicator<space>* stages, F&& f) {
    detail::revoke_on_exception(f, [&](const auto& reason) {
      mesh.revoke(reason.published());
      if (stages != nullptr) stages->revoke(reason.published());
    });
  }
  template <class F>
  void guarded(F&& f) {
    guarded(mesh_, stages_ ? &*stages_ : nullptr, std::forward<F>(f));
  }

  detail::MeshStateIn<space>& mesh_;              // the engine keeps it
  std::optional<AnyCommunicator<space>> stages_;  // of a pipeline
};

namespace detail {

template <class Data, class... Policies>
inline constexpr bool is_training<MeshParallel<Data, Policies...>> = true;

}  // namespace detail

}  // namespace distx::inline DISTX_ABI
