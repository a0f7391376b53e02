// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <chrono>
#include <concepts>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <variant>

#include <distx/checkpoint.hpp>
#include <distx/parallel/mesh_parallel.hpp>

#include "mesh_flag.hpp"
#include "timed_training.hpp"
#include "with_optimizer.hpp"

namespace examples {

/// Wraps a `MeshParallel` training for a model and measures the time of each phase. Communication of the layers during
/// their computation counts as computation.
/// @tparam Policies  Precision for 16-bit weights
template <class... Policies>
class MeshTraining {
  using Clock = std::chrono::steady_clock;

  using Compression = distx::Compress<distx::bfloat16>;

  template <class F>
  decltype(auto) with_inner(F&& f) {
    return std::visit(f, inner_);
  }

 public:
  template <class... More>
  using With = distx::MeshParallel<Data, distx::ZeRO<distx::Dynamic>, More..., Policies...>;
  /// With one micro-batch a step, or several.
  using Whole = With<>;
  using Parts = With<distx::Accumulate<distx::Sharded>>;
  using space = typename Whole::space;
  /// Whether gradients can be compressed: those of float weights in the host's memory.
  static constexpr bool compresses = sizeof...(Policies) == 0;

  /// Whether steps can be captured in a CUDA graph.
  static constexpr bool captures = !distx::HostAccessible<space>;

  using CompressedWhole = With<Compression>;
  using CompressedParts = With<distx::Accumulate<distx::Sharded>, Compression>;

  template <class Training>
  explicit MeshTraining(Training inner) : inner_(std::move(inner)) {}

  /// The time until here belongs to no step.
  void begin_step() { last_ = Clock::now(); }

  template <class... Ps>
  [[nodiscard]] typename Whole::scope unshard(const Ps&... parameters) {
    charge(times_.compute);
    auto scope = with_inner([&](auto& inner) { return inner.unshard(parameters...); });
    charge(times_.communication);
    return scope;
  }
  template <class W, class G>
  void ready(const W& weight, const G& gradient) {
    charge(times_.compute);
    with_inner([&](auto& inner) { inner.ready(weight, gradient); });
    charge(times_.communication);
  }
  /// Until the scope ends, gradients are those of one of several micro-batches.
  [[nodiscard]] std::shared_ptr<void> micro_batch(const distx::MicroBatchIndex& which) {
    charge(times_.compute);
    std::shared_ptr<void> scope;
    with_inner([&]<class Inner>(Inner& inner) {
      if constexpr (!std::same_as<Inner, Whole> && !std::same_as<Inner, CompressedWhole>)
        scope = std::make_shared<decltype(inner.micro_batch(which))>(inner.micro_batch(which));
    });
    charge(times_.communication);
    return scope;
  }
  /// Until the scope ends, weights are used without gradients.
  [[nodiscard]] auto evaluate() {
    return with_inner([](auto& inner) { return inner.evaluate(); });
  }
  [[nodiscard]] distx::observe::CountedMemory count_activations(std::size_t bytes) {
    return with_inner([&](auto& inner) { return inner.count_activations(bytes); });
  }

  void step(const distx::StepOptions& options) {
    with_inner([&](auto& inner) {
      charge(times_.compute);
      inner.reduce_gradients();
      charge(times_.communication);
      inner.update_weights(options);
      charge(times_.update);
      inner.gather_weights();
      charge(times_.communication);
    });
  }
  /// Captures the step whose micro-batches `f` makes. Collective over the mesh.
  void capture(const std::function<void()>& f) {
    with_inner([&](auto& inner) {
      inner.capture([&] {
        f();
        inner.step({.learning_rate = 0});
      });
    });
  }
  /// Replays the captured step, and returns the result of `read`, which waits for it. The time of both is computation.
  /// Collective over the mesh.
  template <class Read>
  auto replay(const distx::StepOptions& options, Read&& read) {
    with_inner([&](auto& inner) { inner.replay(options); });
    auto result = read();
    charge(times_.compute);
    return result;
  }
  /// Passes every weight whole. Collective.
  template <class F>
  void for_each_full_weight(F&& f) {
    with_inner([&](auto& inner) { inner.for_each_full_weight(f); });
  }
  /// Saves a checkpoint; the time belongs to no step. Collective.
  void save(const std::filesystem::path& directory, const distx::checkpoint::SaveOptions& options) {
    with_inner([&](auto& inner) { distx::checkpoint::save(directory, inner, options); });
  }
  /// Loads a checkpoint. Collective.
  distx::checkpoint::Loaded load(const std::filesystem::path& folder) {
    return with_inner([&](auto& inner) { return distx::checkpoint::load(folder, inner); });
  }

  /// The sums over all steps.
  [[nodiscard]] const StepTimes& times() const { return times_; }
  /// The bytes that this rank holds.
  [[nodiscard]] distx::observe::MemoryLedger memory() const {
    return std::visit([](const auto& inner) { return inner.memory(); }, inner_);
  }

  /// Loads weights alone. Collective.
  void load_weights(const std::filesystem::path& path, const distx::checkpoint::WeightOptions& options) {
    with_inner([&](auto& inner) { distx::checkpoint::load_weights(path, inner, options); });
  }

 private:
  void charge(double& sum) {
    const auto now = Clock::now();
    sum += std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  }

  std::conditional_t<compresses, std::variant<Whole, Parts, CompressedWhole, CompressedParts>,
                     std::variant<Whole, Parts>>
      inner_;
  StepTimes times_;
  Clock::time_point last_ = Clock::now();
};

/// A training by the flags, of weights that are split over a mesh.
/// @tparam Training  a MeshTraining
/// @param stages  the ranks that hold the other stages of a pipeline, or null
/// @pre MeshFlag::sizes has seen the flags
template <class Training, class MeshT>
Training make_mesh_training(const MeshT& mesh, const distx::TensorParameterList<typename Training::space>& parameters,
                            const TrainingFlags& flags,
                            distx::AnyCommunicator<typename Training::space>* stages = nullptr) {
  return with_optimizer(flags, [&]<class Optimizer>(const Optimizer& optimizer) -> Training {
    const bool whole = stages != nullptr || flags.accumulate == 1;
    const auto make = [&]<class Inner>(std::type_identity<Inner>) {
      return Training(stages != nullptr ? Inner(mesh, parameters, optimizer, options_of(flags), *stages)
                                        : Inner(mesh, parameters, optimizer, options_of(flags)));
    };
    if constexpr (!distx::detail::UpdatesIn<Optimizer, typename Training::space>) {
      throw distx::Error("this optimizer needs whole weights, in the host's memory");
    } else {
      if constexpr (Training::compresses)
        if (flags.compress != "none")
          return whole ? make(std::type_identity<typename Training::CompressedWhole>())
                       : make(std::type_identity<typename Training::CompressedParts>());
      return whole ? make(std::type_identity<typename Training::Whole>())
                   : make(std::type_identity<typename Training::Parts>());
    }
  });
}

}  // namespace examples
