// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "distx/memory/detail/current_device.hpp"
#include "distx/observe/memory_ledger.hpp"
#include "distx/optim/step.hpp"
#include "distx/parallel/data_parallel_options.hpp"
#include "distx/parallel/detail/base/training_policies.hpp"
#include "distx/parallel/detail/engine/step/step_state.hpp"
#include "distx/parallel/detail/optimizer/any_optimizer.hpp"
#include "distx/parallel/parameter_list.hpp"
#include "distx/parallel/training_state.hpp"
#include "distx/parallel/unsharded.hpp"

namespace distx::inline DISTX_ABI::detail {

template <MemorySpace Space>
class Replicas;
template <MemorySpace Space>
using KeptReplicas = std::vector<std::shared_ptr<Replicas<Space>>>;

/// Is called with the name and the values of a parameter.
template <MemorySpace Space>
using ParameterVisitor = std::function<void(const std::string&, Span<const AnyElement, Space>)>;

/// The mesh of a MeshParallel, for the training of this rank's parts.
template <MemorySpace Space>
struct TrainingMesh {
  std::vector<MeshParameter> parameters{};  ///< all of them, in order
  /// The ranks that hold the other stages of a pipeline, and those along the other axes. The norm of the gradients
  /// counts their parameters too, each once, where its part is `first`.
  std::optional<AnyCommunicator<Space>> stages{}, across{};
  std::optional<AnyCommunicator<Space>> whole{};     ///< all ranks of the mesh, if it has other axes
  std::string optimizer{};                           ///< its type and hyperparameters
  bool by_norms = false;                             ///< whether the optimizer needs norms of whole weights
  MatrixTransform<Space> matrices{};                 ///< of the optimizer, if it needs whole matrices
  std::function<void(const std::string&)> revoke{};  ///< revokes the mesh's communicators
  /// @name Set by `join_mesh`
  /// @{
  /// Adds the arrays of the parameters that are empty on this rank.
  void (*add_empty)(TrainingState<Space>&, const std::vector<MeshParameter>&, std::size_t averages) = nullptr;
  /// Calls f(name, values) for each parameter with its whole values. Collective over `across`.
  /// @param part  returns this rank's values of the next parameter that is not empty
  void (*pass_whole)(TrainingMesh& mesh, const std::function<Span<const AnyElement, Space>()>& part,
                     const ParameterVisitor<Space>& f, typename Space::stream after,
                     const std::source_location& location) = nullptr;
  /// @}
};

/// A training as its public classes, checkpoints and averages call it.
///
/// The TrainingEngine makes the calls. Programs in the compiled form parse this class only.
template <MemorySpace Space>
class TrainingCalls {
 public:
  using stream = typename Space::stream;
  using here = std::source_location;
  using Guard = typename CurrentDevice<Space>::Guard;

  TrainingCalls() = default;
  TrainingCalls(const TrainingCalls&) = delete;
  TrainingCalls& operator=(const TrainingCalls&) = delete;
  virtual ~TrainingCalls() = default;

  /// Checks that gradients can be requested now, and makes the training's device current until the scope ends.
  [[nodiscard]] virtual Guard check_gradient() = 0;
  /// Zeroes a borrowed gradient when it is first requested in a step.
  virtual void request_gradient(const void* identity, stream after) = 0;
  virtual void ready(const void* identity, stream after, const here& location) = 0;
  [[nodiscard]] virtual bool shards_weights() const noexcept = 0;
  /// Makes the unit of an owned parameter whole until `scope` ends. @pre shards_weights()
  virtual void unshard(Unsharded<Space>& scope, const void* identity, stream after, const here& location) = 0;
  [[nodiscard]] virtual Evaluation<Space> evaluate() = 0;
  virtual void begin_micro_batch(const MicroBatchIndex& which, stream after, const here& location) = 0;
  /// Returns the number of ranks that have a batch in the next step; the others take part with gradients of zero.
  [[nodiscard]] virtual int announce_batch(bool has_batch, stream after, const here& location) = 0;
  virtual void step(const StepOptions& options, stream after, const here& location) = 0;
  virtual void capture(const std::function<void()>& f, stream after, const here& location) = 0;
  virtual void replay(const StepOptions& options, stream after, const here& location) = 0;
  virtual void reduce_gradients(stream after, const here& location) = 0;
  virtual void update_weights(const StepOptions& options, stream after, const here& location) = 0;
  virtual void gather_weights(stream after, const here& location) = 0;
  /// Returns what this rank updates in this step.
  [[nodiscard]] virtual std::vector<Fragment<Space>> owned(const here& location) = 0;
  /// Calls f(name, values) for every parameter with its whole values, in the order of the list.
  virtual void for_each_full_weight(const ParameterVisitor<Space>& f, stream after, const here& location) = 0;
  /// Ends the training; owned parameters keep whole weights.
  virtual void release(stream after, const here& location) = 0;
  /// Returns the state between two steps, also an incomplete one. Local. @throws InvalidState like DataParallel::state
  [[nodiscard]] virtual TrainingState<Space> state(const here& location) = 0;
  [[nodiscard]] virtual double gradient_norm() const = 0;
  [[nodiscard]] virtual double loss_scale() const = 0;
  [[nodiscard]] virtual std::uint64_t skipped_steps() const = 0;
  [[nodiscard]] virtual const std::shared_ptr<MemoryAccount>& account() const noexcept = 0;
  [[nodiscard]] virtual std::size_t bucket_count() const noexcept = 0;

  [[nodiscard]] virtual const here& location() const noexcept = 0;
  [[nodiscard]] virtual const TrainingPolicies& policies() const noexcept = 0;
  [[nodiscard]] virtual AnyCommunicator<Space>& communicator() noexcept = 0;

  /// @name For checkpoints and averages
  /// @{
  /// Runs `f`, ordered between the other calls of the training.
  virtual void ordered(stream after, const std::function<void()>& f) = 0;
  /// Runs `change`, which overwrites arrays of `state()`, all of them if `which` is `load`, and sets the counters.
  /// Every rank calls it. If `change` returns false on every rank, the state is incomplete, and only `load` is legal.
  virtual void restore(StepCall which, const TrainingCounters& counters, stream after, const here& location,
                       const std::function<bool()>& change) = 0;
  /// Checks that the state can be saved, and that the ranks have passed the same options in the last steps. Collective.
  /// @throws InvalidState if the state is incomplete, or during a step
  virtual void check_savable(const here& location) = 0;
  /// Returns memory of any type that checkpoints keep from one save to the next.
  [[nodiscard]] virtual std::shared_ptr<void>& checkpoint_memory() noexcept = 0;
  /// @}
};

/// Makes a TrainingEngine. Collective over `comm`.
template <MemorySpace Space>
[[nodiscard]] std::unique_ptr<TrainingCalls<Space>> make_engine(
    AnyCommunicator<Space> comm, const ParameterList<Space>& parameters, const AnyOptimizer<Space>& optimizer,
    const TrainingPolicies& policies, const DataParallelOptions& options, const std::source_location& location);

/// Makes the training one of parts of a model. Collective over `mesh.stages` and `mesh.across`. Not a virtual function,
/// as the next ones, so that only programs that call it compile it.
template <MemorySpace Space>
void join_mesh(TrainingCalls<Space>& engine, TrainingMesh<Space> mesh);

/// Takes over the newest state of which copies are kept on any rank, if there is one, and begins to keep copies.
/// Collective over all ranks of the training.
/// @param kept  this rank's copies of the training on other ranks; then those of this training, which outlive it
/// @return the number of steps that the training has made
/// @throws CheckpointError on every rank if the state is lost
template <MemorySpace Space>
std::uint64_t replicate(TrainingCalls<Space>& engine, KeptReplicas<Space>& kept, const std::source_location& location);

/// Lets owned parameters whose values an ended training has sharded be in another training, where they begin as zeros.
template <MemorySpace Space>
void forget_shards(const std::vector<ParameterEntry<Space>>& entries) {
  for (const auto& entry : entries) {
    if (!entry.owned || !entry.owned->value.empty()) continue;
    entry.owned->lost = entry.owned->sharded = false;
    entry.owned->initialize = [](Span<AnyElement, Space>) {};
  }
}

/// Owns the engine of a training, which does not exist between a failure and the end of a `recover`. Move-only.
template <MemorySpace Space>
class EngineOwner {
  using Engine = std::unique_ptr<TrainingCalls<Space>>;
  using here = std::source_location;

 public:
  /// Makes an engine on other ranks.
  using Remake = std::function<Engine(AnyCommunicator<Space>&, const here&)>;

  EngineOwner() = default;  ///< of LocalTraining, and of constructors that only report what their arguments lack
  explicit EngineOwner(Engine engine) noexcept : engine_(std::move(engine)) {}

  /// @throws InvalidState between a failed `recover` and the next one
  [[nodiscard]] TrainingCalls<Space>& operator*() const {
    if (engine_ == nullptr)
      throw InvalidState(
          "this training was moved from, or recover has failed; call recover again on the surviving ranks");
    return *engine_;
  }
  [[nodiscard]] TrainingCalls<Space>* operator->() const { return &**this; }

  /// Begins to keep copies of the state, from which `recover` continues. Collective.
  void replicate(Remake remake, const here& location) {
    remake_ = std::move(remake);
    (void)detail::replicate(*engine_, kept_, location);
  }
  std::uint64_t recover(AnyCommunicator<Space> ranks, const here& location) {
    engine_.reset();
    engine_ = remake_(ranks, location);
    try {
      return detail::replicate(*engine_, kept_, location);
    } catch (const CheckpointError&) {
      engine_.reset();
      throw;
    }
  }

 private:
  Engine engine_;
  Remake remake_{};             // null without Replicate
  KeptReplicas<Space> kept_{};  // of this engine, and during `recover` of earlier ones
};

}  // namespace distx::inline DISTX_ABI::detail
