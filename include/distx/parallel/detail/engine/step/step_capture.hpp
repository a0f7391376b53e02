// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <functional>
#include <memory>
#include <optional>

#include "distx/memory/detail/captured_work.hpp"
#include "distx/parallel/detail/base/streams.hpp"
#include "distx/parallel/detail/base/training_communicators.hpp"
#include "distx/parallel/detail/engine/step/step_state.hpp"

namespace distx::inline DISTX_ABI::detail {

/// A step of a training that was captured, and how it is replayed.
///
/// The GPU runs what was captured; the host does by itself what a step does on the host: it checks the options,
/// computes the optimizer's coefficients, counts the step and looks for gradients that were not finite.
template <MemorySpace Space>
class StepCapture {
 public:
  using stream = typename Space::stream;
  using here = std::source_location;

  [[nodiscard]] bool recording() const noexcept { return recording_; }
  /// @throws InvalidState for a call that concerns all of the training and cannot be captured
  void check(StepCall which, stream after, const ErrorContext& context) const {
    if (recording_ && which != StepCall::step && which != StepCall::micro_batch)
      throw InvalidState(
          "a step is being captured, which has gradient, ready, micro_batch and step only; call this after "
          "capture",
          context);
    if (!recording_ && CapturedWork<Space>::capturing(after))
      throw InvalidState("the stream is being captured; capture the step by the training's capture", context);
  }

  /// Captures the step that `f` makes.
  /// @pre the training is between two steps, and nothing that it has enqueued is waited for by what `f` enqueues
  template <class Engine>
  void record(Engine& engine, const std::function<void()>& f, stream after, const here& location) {
    if constexpr (CapturedWork<Space>::available)
      if (after == stream())
        throw InvalidArgument("pass a stream: CUDA cannot capture its default stream",
                              engine.context("capture", location));
    engine.call(StepCall::between_steps, "capture", after, location, [&] {
      const ErrorContext context = engine.context("capture", location);
      check_capturable(engine, context);
      engine.check_no_gradients("capture", location);
      work_.reset();
      synchronize_all<Space>();  // captured work cannot wait for work before it
      engine.buckets_.gradient_pool().begin_capture();
      if (!reduced_) reduced_ = std::make_shared<Buffer<std::int32_t, Space>>(1);
      engine.scaling_.begin_capture(engine.parameters_.size());
      engine.shards_.begin_capture();
      const auto steps = engine.steps_;
      recording_ = true;
      try {
        work_.emplace(after, f);
        if (engine.steps_ != steps + 1)
          throw InvalidState(
              "the function made " + std::to_string(engine.steps_ - steps) + " steps; call step in it once", context);
      } catch (...) {
        recording_ = false;
        work_.reset();
        throw;
      }
      recording_ = false;
      engine.steps_ = steps;
      engine.shards_.end_capture();
      engine.scaling_.end_capture(after);
    });
  }
  /// Enqueues the captured step. Collective.
  template <class Engine, class Options>
  void replay(Engine& engine, const Options& options, stream after, const here& location) {
    engine.call(StepCall::between_steps, "replay", after, location, [&] {
      const ErrorContext context = engine.context("replay", location);
      if (!work_) throw InvalidState("no step is captured; call capture first", context);
      engine.check_no_gradients("replay", location);
      engine.step_options_.check(options, false, context);
      engine.note(options, context);
      engine.shards_.replay(options, after);
      work_->launch(after);
      engine.scaling_.replayed(after, location);
      watch(engine.comms_, after, location);
      ++engine.steps_;
    });
  }

 private:
  template <class Engine>
  static void check_capturable(const Engine& engine, const ErrorContext& context) {
    const auto refuse = [&](bool wrong, const char* message) {
      if (wrong) throw InvalidState(message, context);
    };
    const auto& options = engine.options_;
    const auto& policies = engine.policies_;
    refuse(policies.stage == 3, "stage 3 of ZeRO gathers weights between steps, which cannot be captured; use stage 2");
    refuse(
        !engine.shards_.capturable(),
        "optimizers of whole parameters (LAMB, Muon, Mixed) make the host wait in each step, which cannot be captured; "
        "use an ElementwiseOptimizer, such as AdamW");
    refuse(options.allow_unused,
           ".allow_unused makes the host wait in each step, which cannot be captured; give every "
           "parameter a gradient in each step");
    refuse(options.guard_every != 0, ".guard_every makes the host wait, which cannot be captured; set it to 0");
    refuse(options.skip_nonfinite,
           ".skip_nonfinite makes the host wait in each step, which cannot be captured; set it to false");
    refuse(engine.scaling_.scaler().on(),
           "scaled losses of float16 make the host wait in each step, which cannot be "
           "captured; use bfloat16");
    refuse(policies.replicate, "Replicate copies the state after each step, which cannot be captured; remove it");
    refuse(engine.steps_ == 0,
           "no step has been made; make one before capture, so that everything is allocated and "
           "loaded");
  }
  /// Enqueues a reduction of one number after the captured step, for which its communicators' watchdogs wait: a rank
  /// that fails, or does not replay the step, is detected at the deadline.
  void watch(TrainingCommunicators<Space>& comms, stream after, const here& location) {
    for (auto* comm : {&comms.reducing(), comms.across()})
      if (comm != nullptr && comm->size() > 1)
        make_in_order(*comm, AllReduce<std::int32_t, Max, Space>{reduced_->span(), reduced_->span(), max, location},
                      after);
  }

  std::shared_ptr<Buffer<std::int32_t, Space>> reduced_{};  // null until a step is captured
  std::optional<CapturedWork<Space>> work_{};
  bool recording_ = false;
};

}  // namespace distx::inline DISTX_ABI::detail
