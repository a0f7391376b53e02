// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <chrono>
#include <memory>
#include <utility>

#include <distx/parallel/mesh_parallel.hpp>

#include "mesh_flag.hpp"
#include "timed_training.hpp"

namespace examples {

/// Wraps a `MeshParallel` training for a model and measures the time of each phase. Communication of the layers during
/// their computation counts as computation.
class MeshTraining {
  using Clock = std::chrono::steady_clock;

 public:
  using Inner = distx::MeshParallel<Data, distx::ZeRO<distx::Dynamic>>;

  explicit MeshTraining(Inner inner) : inner_(std::move(inner)) {}

  /// The time until here belongs to no step.
  void begin_step() { last_ = Clock::now(); }

  template <class... Ps>
  [[nodiscard]] Inner::scope unshard(const Ps&... parameters) {
    charge(times_.compute);
    auto scope = inner_.unshard(parameters...);
    charge(times_.communication);
    return scope;
  }
  template <class W, class G>
  void ready(const W& weight, const G& gradient) {
    charge(times_.compute);
    inner_.ready(weight, gradient);
    charge(times_.communication);
  }
  /// @pre the step has one micro-batch
  [[nodiscard]] std::shared_ptr<void> micro_batch(const distx::MicroBatchIndex&) const { return nullptr; }
  /// Until the scope ends, weights are used without gradients.
  [[nodiscard]] auto evaluate() { return inner_.evaluate(); }

  void step(const distx::StepOptions& options) {
    charge(times_.compute);
    inner_.reduce_gradients();
    charge(times_.communication);
    inner_.update_weights(options);
    charge(times_.update);
    inner_.gather_weights();
    charge(times_.communication);
  }

  /// The sums over all steps.
  [[nodiscard]] const StepTimes& times() const { return times_; }
  /// The bytes that this rank holds.
  [[nodiscard]] distx::observe::MemoryLedger memory() const { return inner_.memory(); }

 private:
  void charge(double& sum) {
    const auto now = Clock::now();
    sum += std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  }

  Inner inner_;
  StepTimes times_;
  Clock::time_point last_ = Clock::now();
};

}  // namespace examples
