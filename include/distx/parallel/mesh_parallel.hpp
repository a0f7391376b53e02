// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/core/detail/revoke_on_exception.hpp"
#include "distx/parallel/data_parallel.hpp"
#include "distx/parallel/tensor_gradient.hpp"
#include "distx/parallel/tensor_parameter.hpp"

namespace distx {

/// Trains a model whose weights are spread over a mesh: a DataParallel along the axis `Data`, of each rank's parts.
///
/// A gradient's type says what it lacks: `ready(weight, gradient)` adds up its terms over the other axes, where it is
/// Partial, and over those alone; the data axis's are then averaged, for each place on it has the mean loss of its own
/// part of the batch. ZeRO shares out along the data axis. The norm of all gradients counts each weight once, wherever
/// it is replicated. Policies, options and the order of calls are DataParallel's; `ready` is collective over the axes
/// that it reduces, and is called in the same order on every rank. All of it comes in the order of the mesh's stream,
/// as the operations on tensors do. An error on one rank revokes the mesh's communicators.
template <class Data, class... Policies>
class MeshParallel {
  using Inner = DataParallel<Policies...>;

 public:
  using space = typename Inner::space;
  using here = std::source_location;
  using scope = typename Inner::scope;

  /// Collective over the mesh.
  /// @throws MismatchError for a weight that lies on another mesh, or is sharded over the data axis; as DataParallel
  template <detail::MeshType MeshT, ElementwiseOptimizer Optimizer>
  MeshParallel(const MeshT& mesh, const TensorParameterList<space>& parameters, const Optimizer& optimizer,
               const DataParallelOptions& options = {}, const here& location = here::current())
      : mesh_(detail::in_space<space>(detail::state_of(mesh))),
        keep_(std::make_shared<MeshT>(mesh)),
        others_(((1U << MeshT::axes) - 1) & ~(1U << MeshT::template index_of<Data>())),
        training_(made(mesh, parameters, optimizer, options, location)) {
    guarded([&] {
      std::vector<bool> counts;
      for (const auto& entry : parameters.entries()) {
        if (entry.empty) continue;
        bool first = true;  // of those that have the same part
        for (std::size_t axis = 0; axis < MeshT::axes; ++axis)
          if ((others_ & ~entry.cutting) >> axis & 1U) first = first && mesh.coordinates()[axis] == 0;
        counts.push_back(first);
      }
      if (others_ != 0) training_.count_in_norm(mesh_.over(others_).share(), std::move(counts));
    });
  }
  template <detail::MeshType MeshT, class Optimizer>
    requires(!ElementwiseOptimizer<Optimizer>)
  MeshParallel(const MeshT&, const TensorParameterList<space>&, const Optimizer&, const DataParallelOptions& = {}) {
    static_assert(ElementwiseOptimizer<Optimizer>,
                  "distx::MeshParallel: an optimizer that looks at a whole weight has only parts of it here: take an "
                  "ElementwiseOptimizer, AdamW or SGD");
  }

  /// The gradient of `weight` is final on this rank: it is added to that of earlier micro-batches and uses.
  /// @throws MismatchError where the extents differ; as DataParallel::ready
  template <class W, class G>
    requires GradientOf<G, W, Data>
  void ready(const W& weight, const G& gradient, const here& location = here::current()) {
    using Facts = detail::GradientFacts<Data, detail::layout_of<W>, detail::layout_of<G>, detail::mesh_of<W>>;
    guarded([&] {
      if (!(weight.mesh() == gradient.mesh()) || weight.extents() != gradient.extents())
        throw MismatchError(
            "'" + weight.name() + "' has " + detail::to_string(weight.extents()) + " elements, its gradient " +
                detail::to_string(gradient.extents()) + ", or they lie on two meshes",
            {.operation = "ready", .rank = mesh_.rank, .size = mesh_.shape.ranks(), .location = location});
      if constexpr (std::is_same_v<typename Facts::reduced, detail::layout_of<G>>) {
        add_gradient(weight, gradient);
      } else {
        add_gradient(weight, detail::reduced_to(std::type_identity<typename Facts::reduced>(), gradient, location));
      }
    });
  }
  template <class W, class G>
    requires(DistributedTensor<W> && !GradientOf<G, W, Data>)
  void ready(const W&, const G&) {
    detail::diagnose_gradient<W, G, Data>();
  }
  template <DistributedTensor W>
  void ready(const W&) {
    static_assert(detail::always_false<W>,
                  "distx: ready: the gradient is missing: pass it behind its weight, for its type says over which axes "
                  "it must be reduced");
  }

  /// @name As DataParallel's
  /// @{
  template <DistributedTensor... Ws>
  [[nodiscard]] scope unshard(const Ws&... weights) {
    scope all;
    const auto hold = [&](const auto& weight) {
      if (weight.part() != nullptr) training_.hold_units(all, *weight.part(), mesh_.stream);
    };
    guarded([&] { (hold(weights), ...); });
    return all;
  }
  [[nodiscard]] Evaluation<space> evaluate() { return training_.evaluate(); }
  [[nodiscard]] MicroBatch micro_batch(bool last, const here& location = here::current())
    requires(Inner::accumulation != detail::Accumulation::none)
  {
    std::optional<MicroBatch> one;
    guarded([&] { one.emplace(training_.micro_batch(last, mesh_.stream, location)); });
    return std::move(*one);
  }
  void step(const StepOptions& options, const here& location = here::current()) {
    guarded([&] { training_.step(options, mesh_.stream, location); });
  }
  void reduce(const here& location = here::current()) {
    guarded([&] { training_.reduce(mesh_.stream, location); });
  }
  void update(const StepOptions& options, const here& location = here::current()) {
    guarded([&] { training_.update(options, mesh_.stream, location); });
  }
  void gather(const here& location = here::current()) {
    guarded([&] { training_.gather(mesh_.stream, location); });
  }
  void release(const here& location = here::current()) {
    guarded([&] { training_.release(mesh_.stream, location); });
  }
  [[nodiscard]] double gradient_norm() const noexcept { return training_.gradient_norm(); }
  [[nodiscard]] double loss_scale() const noexcept { return training_.loss_scale(); }
  [[nodiscard]] MemoryLedger memory() const { return training_.memory(); }
  /// @}

 private:
  template <class MeshT, class Optimizer>
  Inner made(const MeshT& mesh, const TensorParameterList<space>& parameters, const Optimizer& optimizer,
             const DataParallelOptions& options, const here& location) {
    std::optional<Inner> inner;
    guarded([&] {
      for (const auto& entry : parameters.entries()) {
        const auto fail = [&](const char* words) {
          throw MismatchError(
              "'" + entry.name + "' " + words,
              {.operation = "MeshParallel", .rank = mesh.rank(), .size = mesh.size(), .location = location});
        };
        if (entry.mesh != &detail::state_of(mesh))
          fail("lies on another mesh than the training's: make one and hand it to all");
        if (entry.cutting >> MeshT::template index_of<Data>() & 1U)
          fail("is sharded over the data axis: leave that axis out of its layout, and let ZeRO share it out");
      }
      inner.emplace(mesh.template along<Data, space>(), parameters.parts(), optimizer, options, location);
    });
    return std::move(*inner);
  }
  template <class W, class G>
  void add_gradient(const W& weight, const G& gradient) {
    if (weight.part() == nullptr) return;
    const auto stream = mesh_.stream;
    add(stream, training_.gradient(*weight.part(), stream), Span<const detail::value_of<G>, space>(gradient.local()));
    training_.ready_after(stream, *weight.part());
  }
  template <class F>
  void guarded(F&& f) {
    detail::revoke_on_exception(f, [&](const char* words) { mesh_.revoke(words); });
  }

  detail::MeshStateIn<space>& mesh_;
  std::shared_ptr<void> keep_;
  detail::AxisSet others_;
  Inner training_;
};

}  // namespace distx
