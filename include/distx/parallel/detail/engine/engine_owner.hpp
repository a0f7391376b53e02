// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/detail/engine/engine_interface.hpp"

namespace distx::inline DISTX_ABI::detail {

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
          "this training was moved from, or recover has failed; call recover again on the ranks that are left");
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
