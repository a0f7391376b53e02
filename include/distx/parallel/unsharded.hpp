// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <source_location>
#include <utility>
#include <vector>

#include "distx/core/space.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

template <MemorySpace Space>
class TrainingEngine;
template <MemorySpace Space>
class WeightGatherer;

}  // namespace detail

/// A scope, returned by `unshard`, in which the weights of some units are whole on this rank.
///
/// Scopes may nest; a unit's weights are released with its last scope. Below stage 3 of ZeRO the scope is empty.
/// Move-only; it must end before the next `step`.
template <MemorySpace Space>
class [[nodiscard]] Unsharded {
 public:
  /// Constructs an empty scope.
  Unsharded() noexcept = default;
  Unsharded(Unsharded&&) noexcept = default;
  Unsharded& operator=(Unsharded other) noexcept {
    std::swap(gatherer_, other.gatherer_);
    std::swap(units_, other.units_);
    return *this;
  }
  ~Unsharded() {
    if (!units_.empty()) end();
  }

 private:
  friend class detail::TrainingEngine<Space>;

  /// Adds a unit, once for all of its parameters. Collective.
  void hold(const std::shared_ptr<detail::WeightGatherer<Space>>& gatherer, std::size_t unit,
            typename Space::stream after, const std::source_location& location, bool remember = true);
  /// Replaces the scope's units by one, or by none, outside the order that is remembered. Collective.
  void hold_only(const std::shared_ptr<detail::WeightGatherer<Space>>& gatherer, std::optional<std::size_t> unit,
                 typename Space::stream after, const std::source_location& location);
  void end() noexcept;

  std::weak_ptr<detail::WeightGatherer<Space>> gatherer_;  // a scope may outlive the training
  std::vector<std::size_t> units_;
};

namespace detail {

/// A scope, returned by `evaluate`, in which weights are used without gradients and `unshard` has a separate order.
template <MemorySpace Space>
class [[nodiscard]] Evaluation {
 public:
  Evaluation() noexcept = default;  ///< of LocalTraining
  Evaluation(const std::shared_ptr<int>& count, const std::shared_ptr<WeightGatherer<Space>>& gatherer) noexcept;
  Evaluation(Evaluation&& other) noexcept : count_(std::move(other.count_)), gatherer_(std::move(other.gatherer_)) {}
  Evaluation& operator=(Evaluation&&) = delete;
  ~Evaluation();

 private:
  std::weak_ptr<int> count_;  // a scope may outlive the training
  std::weak_ptr<WeightGatherer<Space>> gatherer_;
};

/// A scope, returned by `micro_batch`, that marks one micro-batch of a step.
class [[nodiscard]] MicroBatch {
 public:
  MicroBatch() noexcept = default;
  MicroBatch(MicroBatch&&) noexcept {}
  MicroBatch& operator=(MicroBatch&&) = delete;
  ~MicroBatch() {}  // NOLINT: not trivial, so that compilers do not call the scope unused
};

}  // namespace detail

}  // namespace distx::inline DISTX_ABI
