// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <chrono>
#include <cstddef>
#include <utility>

namespace examples {

/// Where the time of the steps of one rank goes, in seconds.
struct StepTimes {
  double compute = 0;
  double communication = 0;  ///< that the computation waits for
  double update = 0;
};

/// A training as a model sees it, whose time is measured.
template <class Training, class Clock = std::chrono::steady_clock>
class TimedTraining {
 public:
  /// @param training borrowed
  explicit TimedTraining(Training& training) : training_(training) {}

  /// The time until here belongs to no step.
  void begin_step() { last_ = Clock::now(); }

  template <class... P>
  [[nodiscard]] auto unshard(const P&... parameters) {
    if constexpr (requires { training_.unshard(parameters...); }) {
      charge(times_.compute);
      auto scope = training_.unshard(parameters...);
      charge(times_.communication);
      return scope;
    } else {
      return Whole{};
    }
  }
  template <class... P>
  void ready(const P&... parameters) {
    if (withheld_) return;
    charge(times_.compute);
    training_.ready(parameters...);
    charge(times_.communication);
  }
  /// Until the scope ends, gradients are those of one of several micro-batches.
  [[nodiscard]] auto micro_batch(bool last) {
    if constexpr (requires { training_.micro_batch(last); }) {
      return training_.micro_batch(last);
    } else {
      withheld_ = !last;
      return Whole{};
    }
  }
  /// Until the scope ends, there are no gradients.
  [[nodiscard]] auto evaluate() {
    if constexpr (requires { training_.evaluate(); }) return training_.evaluate();
    else return Whole{};
  }
  template <class Options>
  void step(const Options& options) {
    charge(times_.compute);
    training_.reduce();
    charge(times_.communication);
    training_.update(options);
    charge(times_.update);
    training_.gather();
    charge(times_.communication);
  }

  /// The sums over all steps.
  [[nodiscard]] const StepTimes& times() const { return times_; }

 private:
  /// The scope of what is always there.
  struct Whole {
    ~Whole() {}  // NOLINT: a scope that is not used is no mistake
  };

  void charge(double& account) {
    const auto now = Clock::now();
    account += std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  }

  Training& training_;
  bool withheld_ = false;
  typename Clock::time_point last_ = Clock::now();
  StepTimes times_;
};

}  // namespace examples
