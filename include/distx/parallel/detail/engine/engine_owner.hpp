// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/detail/engine/training_engine_calls.hpp"

namespace distx::detail {

/// Owns the engine of a training, which does not exist between a failure and the end of a `recover`.
template <MemorySpace Space>
class EngineOwner {
  using Engine = TrainingEngine<Space>;

 public:
  EngineOwner() = default;
  EngineOwner(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}  // NOLINT
  [[nodiscard]] Engine& operator*() const {
    if (engine_ == nullptr) throw InvalidState("recover has failed: call it again on the ranks that are left");
    return *engine_;
  }
  [[nodiscard]] Engine* operator->() const { return &**this; }
  [[nodiscard]] explicit operator bool() const noexcept { return engine_ != nullptr; }

 private:
  std::unique_ptr<Engine> engine_;
};

}  // namespace distx::detail
