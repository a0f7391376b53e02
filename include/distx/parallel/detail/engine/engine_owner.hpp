// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "distx/memory/detail/current_device.hpp"
#include "distx/observe/memory_ledger.hpp"
#include "distx/optim/step.hpp"
#include "distx/parallel/data_parallel_options.hpp"
#include "distx/parallel/detail/base/training_policies.hpp"
#include "distx/parallel/detail/optimizer/any_optimizer.hpp"
#include "distx/parallel/parameter_list.hpp"
#include "distx/parallel/training_state.hpp"
#include "distx/parallel/unsharded.hpp"

namespace distx::detail {

template <MemorySpace Space>
class Replicas;

/// Owns the engine of a training, which does not exist between a failure and the end of a `recover`, and passes calls
/// to it. Programs that link the compiled part of the library do not parse the engine: `engine_owner_calls.hpp` defines
/// the members.
template <MemorySpace Space>
class EngineOwner {
  using Engine = TrainingEngine<Space>;
  using stream = typename Space::stream;
  using here = std::source_location;

 public:
  /// Makes an engine on other ranks.
  using Remake = std::function<std::unique_ptr<Engine>(AnyCommunicator<Space>&, const here&)>;

  EngineOwner();  ///< of constructors that only report what their arguments lack
  EngineOwner(AnyCommunicator<Space> comm, std::vector<ParameterEntry<Space>> entries,
              const AnyOptimizer<Space>& optimizer, const TrainingPolicies& policies,
              const DataParallelOptions& options, const here& location);
  EngineOwner(EngineOwner&&) noexcept;
  EngineOwner& operator=(EngineOwner&&) noexcept;
  ~EngineOwner();

  /// @throws InvalidState between a failed `recover` and the next one
  [[nodiscard]] Engine& operator*() const;
  [[nodiscard]] Engine* operator->() const { return &**this; }

  /// Begins to keep copies of the state, from which `recover` continues. `optimizer` returns the optimizer that
  /// `recover` borrows. Collective.
  void replicate(std::vector<ParameterEntry<Space>> entries, std::function<AnyOptimizer<Space>()> optimizer,
                 const DataParallelOptions& options, const here& location);
  std::uint64_t recover(AnyCommunicator<Space> ranks, const here& location);

  /// @name The calls of DataParallel
  /// @{
  using Guard = typename CurrentDevice<Space>::Guard;
  [[nodiscard]] Guard on_device() const;
  void check_gradient() const;
  void request_gradient(const void* identity, stream after) const;
  void ready(const void* identity, stream after, const here& location) const;
  [[nodiscard]] bool shards_weights() const;
  void unshard(Unsharded<Space>& scope, const void* identity, stream after, const here& location) const;
  [[nodiscard]] Evaluation<Space> evaluate() const;
  void begin_micro_batch(bool last, stream after, const here& location) const;
  [[nodiscard]] int join(bool has_batch, stream after, const here& location) const;
  void step(const StepOptions& options, stream after, const here& location) const;
  void capture(const std::function<void()>& f, stream after, const here& location) const;
  void replay(const StepOptions& options, stream after, const here& location) const;
  void reduce(stream after, const here& location) const;
  void update(const StepOptions& options, stream after, const here& location) const;
  void gather(stream after, const here& location) const;
  [[nodiscard]] std::vector<Segment<Space>> owned(const here& location) const;
  void for_each_full_weight(const std::function<void(const std::string&, Span<const AnyElement, Space>)>& f,
                            stream after, const here& location) const;
  void release(stream after, const here& location) const;
  [[nodiscard]] TrainingState<Space> state(const here& location) const;
  [[nodiscard]] const here& location() const;
  [[nodiscard]] double gradient_norm() const;
  [[nodiscard]] double loss_scale() const;
  [[nodiscard]] std::uint64_t skipped_steps() const;
  [[nodiscard]] observe::MemoryLedger memory() const;
  [[nodiscard]] std::size_t bucket_count() const;
  /// @}

 private:
  std::unique_ptr<Engine> engine_;
  Remake remake_{};                                       // null without Replicate
  std::vector<std::unique_ptr<Replicas<Space>>> kept_{};  // between a failure and the end of `recover`
};

}  // namespace distx::detail
