// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/detail/engine/units.hpp"

namespace distx {

/// While one lives, the weights that it was made for are whole on this rank: what `unshard` returns.
///
/// Scopes may nest; a unit's weights go with its last scope. Below stage 3 of ZeRO it holds nothing. Move-only; ended
/// before the next `step`.
template <MemorySpace Space>
class [[nodiscard]] Unsharded {
 public:
  Unsharded() noexcept = default;
  Unsharded(Unsharded&& other) noexcept : units_(std::move(other.units_)), held_(std::exchange(other.held_, {})) {}
  Unsharded& operator=(Unsharded&& other) noexcept {
    if (this != &other) {
      end();
      units_ = std::move(other.units_);
      held_ = std::exchange(other.held_, {});
    }
    return *this;
  }
  ~Unsharded() { end(); }

  /// Adds a unit; once is enough for all of its parameters. Collective.
  void hold(const std::shared_ptr<detail::Units<Space>>& units, std::size_t unit, typename Space::stream after,
            const std::source_location& location, bool remember = true) {
    if (std::find(held_.begin(), held_.end(), unit) != held_.end()) return;
    held_.reserve(held_.size() + 1);
    units->acquire(unit, after, location, remember);
    held_.push_back(unit);
    units_ = units;
  }

 private:
  void end() noexcept {
    if (const auto units = units_.lock(); units != nullptr)
      for (const auto unit : held_) units->release(unit);
    held_.clear();
  }

  std::weak_ptr<detail::Units<Space>> units_;  // a scope may outlive the training
  std::vector<std::size_t> held_;
};

/// While one lives, weights are used without gradients, and the scopes of `unshard` have an order of their own: what
/// `evaluate` returns. Move-only.
template <MemorySpace Space>
class [[nodiscard]] Evaluation {
 public:
  using Count = std::shared_ptr<int>;  // of the evaluations that go on in a training

  Evaluation(const Count& count, const std::shared_ptr<detail::Units<Space>>& units) noexcept
      : count_(count), units_(units) {
    if ((*count)++ == 0 && units != nullptr) units->begin_evaluation();
  }
  Evaluation(Evaluation&& other) noexcept : count_(std::move(other.count_)), units_(std::move(other.units_)) {}
  Evaluation& operator=(Evaluation&&) = delete;
  ~Evaluation() {
    const auto count = count_.lock();
    if (count == nullptr || --*count > 0) return;
    if (const auto units = units_.lock(); units != nullptr) units->end_evaluation();
  }

 private:
  std::weak_ptr<int> count_;  // a scope may outlive the training
  std::weak_ptr<detail::Units<Space>> units_;
};

/// While one lives, a micro-batch goes on: what `micro_batch` returns. Move-only.
class [[nodiscard]] MicroBatch {
 public:
  MicroBatch() noexcept = default;
  MicroBatch(MicroBatch&&) noexcept {}
  MicroBatch& operator=(MicroBatch&&) = delete;
  ~MicroBatch() {}  // NOLINT: so that nobody is warned of an unused variable
};

}  // namespace distx
