// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <memory>
#include <optional>
#include <source_location>
#include <vector>

#include "distx/parallel/fragment.hpp"

namespace distx::inline DISTX_ABI {

template <bool Alone, class... Policies>
class TrainingMethods;

namespace detail {

template <MemorySpace Space>
class TrainingCalls;
template <MemorySpace Space>
class TrainingEngine;
template <MemorySpace Space>
class TrackedBytes;
template <MemorySpace Space>
struct AverageValues;

}  // namespace detail

/// An exponential moving average of the weights: average = decay * average + (1 - decay) * weight.
///
/// Made by `DataParallel::ema` or `MeshParallel::ema`; the training must outlive it. Each rank holds the average of the
/// weights that it updates, in float, or in double for double weights. Move-only. It is part of the training's state,
/// and so of checkpoints, while it exists.
/// @code
/// auto average = training.ema(0.999);
/// for (…) { …; training.step(options); average.update(); }
/// { const auto averaged = average.swap_in(); evaluate(model); }
/// @endcode
template <MemorySpace Space>
class ExponentialAverage {
  using Engine = detail::TrainingEngine<Space>;
  using Fragments = std::vector<Fragment<Space>>;

 public:
  using stream = typename Space::stream;
  using here = std::source_location;

  ExponentialAverage(ExponentialAverage&&) noexcept = default;
  ExponentialAverage& operator=(ExponentialAverage&&) noexcept = default;

  /// Updates the average with the current weights, in the order of `after`, or of the stream that `ema` used; call it
  /// after each step. Local.
  void update(const std::optional<stream>& after = {});

  /// A scope in which the model has the average's values instead of the weights; its end, too, is collective.
  class [[nodiscard]] scope {
   public:
    scope(scope&&) noexcept = default;
    scope& operator=(scope&&) = delete;
    ~scope();

   private:
    friend class ExponentialAverage;
    scope(Engine& engine, Fragments fragments, stream after);
    void copy_kept(bool keep);

    Engine* engine_;
    Fragments fragments_;
    std::shared_ptr<detail::TrackedBytes<Space>> kept_;
    std::shared_ptr<void> token_;  // null after a move
    [[no_unique_address]] stream after_;
  };
  /// Replaces the model's weights by the average until the scope ends, on the stream `after`, or the one that `ema`
  /// used; gradients are refused in the scope. Collective, between steps.
  /// @throws InvalidState during a step, or inside a scope of `unshard`
  [[nodiscard]] scope swap_in(const std::optional<stream>& after = {}, const here& location = here::current());

 private:
  template <bool Alone, class... Policies>
  friend class TrainingMethods;

  ExponentialAverage(detail::TrainingCalls<Space>& engine, double decay, stream after, const here& location);

  /// Calls f(fragment, mean) for what this rank updates.
  template <class F>
  void each(F&& f);

  Engine* engine_;
  double decay_;
  [[no_unique_address]] stream after_;
  std::shared_ptr<detail::AverageValues<Space>> average_;
};

}  // namespace distx::inline DISTX_ABI
