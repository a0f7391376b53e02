// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/core/detail/revoke_on_exception.hpp"
#include "distx/parallel/data_parallel.hpp"
#include "distx/parallel/detail/engine/engine_owner_calls.hpp"
#include "distx/parallel/tensor_gradient.hpp"
#include "distx/parallel/tensor_parameter.hpp"

namespace distx {

/// Trains a model whose weights are distributed over a mesh: a DataParallel of each rank's parts along the axis `Data`.
///
/// `ready(weight, gradient)` sums the gradient over the other axes where its type is Partial; along the data axis
/// gradients are averaged, since each coordinate there has the mean loss of another part of the batch. ZeRO shards
/// along the data axis. The norm of all gradients counts each weight once, wherever it is replicated. Policies, options
/// and the order of calls are DataParallel's. Everything is ordered by the mesh's stream, as operations on tensors are.
/// An error on one rank revokes the mesh's communicators.
///
/// It offers a part of DataParallel's interface. Whole weights, which `for_each_full_weight` passes there, are tensors
/// that `redistribute` replicates inside a scope of `unshard`. It has neither `join`, for which a coordinate of the
/// data axis without a batch would also have to join the reductions of Partial gradients along the other axes, nor
/// `average`, whose state would need the parts' offsets in the tensors.
///
/// @tparam Data  the axis of the mesh along which batches are split
/// @tparam Policies  those of DataParallel
template <class Data, class... Policies>
class MeshParallel {
  using Inner = DataParallel<Policies...>;
  static_assert(detail::replicates_named<Policies...> == 0,
                "distx::MeshParallel: Replicate supports DataParallel only; remove it");

 public:
  using space = typename Inner::space;
  using here = std::source_location;
  using scope = typename Inner::scope;

  /// Constructs a training. Collective over the mesh.
  /// @throws InvalidArgument for a weight on another mesh, or sharded over the data axis; otherwise as DataParallel
  template <detail::MeshType MeshT, ElementwiseOptimizer Optimizer>
  MeshParallel(const MeshT& mesh, const TensorParameterList<space>& parameters, const Optimizer& optimizer,
               const DataParallelOptions& options = {}, const here& location = here::current())
      : mesh_(detail::in_space<space>(detail::state_of(mesh))),
        keep_(std::make_shared<MeshT>(mesh)),
        others_(((1U << MeshT::axes) - 1) & ~(1U << MeshT::template index_of<Data>())),
        training_(made(mesh, parameters, optimizer, options, location)) {
    guarded([&] {
      std::vector<bool> counts;
      std::vector<detail::TensorPart> parts;
      for (const auto& entry : detail::TensorAccess::entries(parameters)) {
        if (entry.empty) continue;
        parts.push_back(entry.part);
        bool& first = parts.back().first;
        for (std::size_t axis = 0; axis < MeshT::axes; ++axis)
          if ((others_ & ~entry.cutting) >> axis & 1U) first = first && mesh.coordinates()[axis] == 0;
        counts.push_back(first);
      }
      engine().describe_parts(std::move(parts));
      for (const auto& entry : detail::TensorAccess::entries(parameters)) {
        Listed& listed = listed_.emplace_back(Listed{entry.name, entry.type(), entry.empty, entry.part});
        if (!entry.trained()) continue;
        if (engine().policies().has_master(entry.type())) listed.arrays.emplace_back("master");
        for (std::size_t k = 0; k < Optimizer::states; ++k) listed.arrays.push_back(detail::state_name<Optimizer>(k));
      }
      if (others_ != 0)
        detail::TrainingAccess::engine(training_).extend_norm(mesh_.over(others_).share(), std::move(counts));
    });
  }
  /// Diagnoses an optimizer that does not support distributed weights with one compile error.
  template <detail::MeshType MeshT, class Optimizer>
    requires(!ElementwiseOptimizer<Optimizer>)
  MeshParallel(const MeshT&, const TensorParameterList<space>&, const Optimizer&, const DataParallelOptions& = {},
               const here& = {})
      : MeshParallel(Diagnosed()) {
    static_assert(!ShardableOptimizer<Optimizer>,
                  "distx::MeshParallel: optimizers of whole weights (LAMB, Muon, Mixed) do not support distributed "
                  "weights; use an ElementwiseOptimizer, such as AdamW or SGD");
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
  /// @param gradient  a distributed tensor of the weight's extents and element type, with a layout that GradientOf
  /// allows
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

  /// Makes weights whole along the data axis until the returned scope ends; errors name the line of the training's
  /// construction. @see DataParallel::unshard
  template <DistributedTensor... Ws>
  [[nodiscard]] scope unshard(const Ws&... weights) {
    scope all;
    const auto hold = [&](const auto& weight) {
      if (const auto* const part = detail::TensorAccess::part(weight); part != nullptr)
        detail::TrainingAccess::unshard(training_, all, {mesh_.stream, engine().location()}, *part);
    };
    guarded([&] { (hold(weights), ...); });
    return all;
  }
  /// Opens a scope without gradients. @see DataParallel::evaluate
  [[nodiscard]] detail::Evaluation<space> evaluate() { return training_.evaluate(); }
  /// Begins a micro-batch of a step. @see DataParallel::micro_batch
  [[nodiscard]] detail::MicroBatch micro_batch(bool last, const here& location = here::current()) {
    std::optional<detail::MicroBatch> one;
    guarded([&] { one.emplace(training_.micro_batch(last, mesh_.stream, location)); });
    return std::move(*one);
  }
  /// Ends the step. Collective. @see DataParallel::step
  void step(const StepOptions& options, const here& location = here::current()) {
    guarded([&] { training_.step(options, mesh_.stream, location); });
  }
  /// Averages and clips the gradients. Collective. @see DataParallel::reduce
  void reduce(const here& location = here::current()) {
    guarded([&] { training_.reduce(mesh_.stream, location); });
  }
  /// Updates this rank's shards. Collective. @see DataParallel::update
  void update(const StepOptions& options, const here& location = here::current()) {
    guarded([&] { training_.update(options, mesh_.stream, location); });
  }
  /// Ends the step with every rank's updated weights. Collective. @see DataParallel::gather
  void gather(const here& location = here::current()) {
    guarded([&] { training_.gather(mesh_.stream, location); });
  }
  /// Returns what this rank has to update between `reduce` and `gather`, for custom update kernels in place of
  /// `update`. `.parameter` is an index in the constructor's list; `.offset` is in this rank's part of that weight.
  /// @see DataParallel::owned
  [[nodiscard]] std::vector<Segment<space>> owned(const here& location = here::current()) {
    std::vector<Segment<space>> segments;
    guarded([&] { segments = training_.owned(location); });
    std::vector<std::size_t> with_part;  // the weights that `training_` has
    for (std::size_t i = 0; i < listed_.size(); ++i)
      if (!listed_[i].empty) with_part.push_back(i);
    for (auto& segment : segments) segment.parameter = with_part[segment.parameter];
    return segments;
  }
  /// Ends the training and leaves each rank's parts whole. Collective. @see DataParallel::release
  void release(const here& location = here::current()) {
    guarded([&] { training_.release(mesh_.stream, location); });
  }
  /// Returns all that the training needs to be resumed, with what this rank holds of it: each array's part is a box of
  /// the whole array. Local, between steps. @see DataParallel::state
  [[nodiscard]] TrainingState<space> state(const here& location = here::current()) {
    auto state = engine().state(location);
    auto held = std::move(state.arrays);
    state.arrays.clear();
    auto next = held.begin();
    for (const auto& each : listed_) {
      const std::size_t arrays = 1 + each.arrays.size();
      if (each.empty) {
        add_empty(state, each);
        continue;
      }
      std::move(next, next + static_cast<std::ptrdiff_t>(arrays), std::back_inserter(state.arrays));
      next += static_cast<std::ptrdiff_t>(arrays);
    }
    return state;
  }

  /// Returns the norm of all gradients of the last step, over the whole mesh, before they were clipped.
  [[nodiscard]] double gradient_norm() const { return training_.gradient_norm(); }
  /// Returns the factor for the loss before the backward pass.
  [[nodiscard]] double loss_scale() const { return training_.loss_scale(); }
  /// Returns the number of steps that were skipped on the whole mesh. @see DataParallel::skipped_steps
  [[nodiscard]] std::uint64_t skipped_steps() const { return training_.skipped_steps(); }
  /// Returns the bytes that this rank holds, now and at peak.
  [[nodiscard]] observe::MemoryLedger memory() const { return training_.memory(); }

 private:
  friend struct detail::TrainingAccess;

  struct Diagnosed {};
  explicit MeshParallel(Diagnosed);  // not defined: for constructors that do not compile

  /// A weight in the state: its arrays of the optimizer, and its part on this rank.
  struct Listed {
    std::string name;
    ElementType type = ElementType::bytes;
    bool empty = false;  // on this rank, so that `training_` does not have it
    detail::TensorPart part{};
    std::vector<std::string> arrays{};
  };
  static void add_empty(TrainingState<space>& state, const Listed& listed) {
    const auto add = [&](std::string name, ElementType type) {
      auto& array = state.arrays.emplace_back();
      array.name = std::move(name);
      array.shape = listed.part.shape;
      array.values = {nullptr, 0, type, size_of(type)};
      array.part_begin = listed.part.part_begin;
      array.part_shape = listed.part.part_shape;
    };
    add(listed.name, listed.type);
    for (const auto& each : listed.arrays)
      add("optim.state." + listed.name + "." + each,
          listed.type == ElementType::f64 ? ElementType::f64 : ElementType::f32);
  }
  template <class MeshT, class Optimizer>
  Inner made(const MeshT& mesh, const TensorParameterList<space>& parameters, const Optimizer& optimizer,
             const DataParallelOptions& options, const here& location) {
    std::optional<Inner> inner;
    guarded([&] {
      for (const auto& entry : detail::TensorAccess::entries(parameters)) {
        const auto fail = [&](const char* message) {
          throw InvalidArgument(
              "'" + entry.name + "' " + message,
              {.operation = "MeshParallel", .rank = mesh.rank(), .size = mesh.size(), .location = location});
        };
        if (entry.mesh != &detail::state_of(mesh))
          fail("is on another mesh than the training; construct them from the same Mesh object");
        if (entry.cutting >> MeshT::template index_of<Data>() & 1U)
          fail("is sharded over the data axis; omit that axis from its layout, and use ZeRO to shard along it");
      }
      check_effects(mesh, parameters, options, location);
      inner.emplace(detail::TrainingAccess::make<Inner>(
          mesh.template along<Data, space>(), detail::TensorAccess::parts(parameters), optimizer, options, location));
    });
    return std::move(*inner);
  }
  template <class W, class G>
  void add_gradient(const W& weight, const G& gradient, const here& location) {
    const auto* const part = detail::TensorAccess::part(weight);
    if (part == nullptr) return;
    const auto stream = mesh_.stream;
    add(stream, training_.gradient(*part, stream), Span<const detail::value_of<G>, space>(gradient.local()));
    training_.ready_after({stream, location}, *part);
  }
  /// Checks, over the parts of all ranks, that Precision and `.loss_scale` apply to some weight.
  template <class MeshT>
  static void check_effects(const MeshT& mesh, const TensorParameterList<space>& parameters,
                            const DataParallelOptions& options, const here& location) {
    detail::check_effects(
        detail::TensorAccess::entries(parameters), detail::communication_of_policies<Policies...>().has_value(),
        options, {.operation = "MeshParallel", .rank = mesh.rank(), .size = mesh.size(), .location = location});
  }
  [[nodiscard]] auto& engine() noexcept { return detail::TrainingAccess::engine(training_); }
  template <class F>
  void guarded(F&& f) {
    detail::revoke_on_exception(f, [&](const auto& reason) { mesh_.revoke(reason.published()); });
  }

  detail::MeshStateIn<space>& mesh_;
  std::shared_ptr<void> keep_;
  detail::AxisSet others_;
  Inner training_;
  std::vector<Listed> listed_{};  // in the order of the parameters
};

namespace detail {

template <class Data, class... Policies>
inline constexpr bool is_training<MeshParallel<Data, Policies...>> = true;

}  // namespace detail

}  // namespace distx

#ifdef DISTX_COMPILED
#include "distx/parallel/detail/compiled_engine.hpp"
#endif
