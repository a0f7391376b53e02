// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "common/timed_training.hpp"

#include <chrono>
#include <string>
#include <utility>

#include <doctest/doctest.h>

using namespace examples;

namespace timed_training_test {

namespace {

/// A clock that goes when told.
struct Hands {
  using duration = std::chrono::seconds;
  using time_point = std::chrono::time_point<Hands, duration>;
  static inline int seconds = 0;
  static time_point now() { return time_point(duration(seconds)); }
};

using Parameter = distx::Parameter<float>;

/// The calls and the ends of scopes, in order.
std::string asked;

void take(const std::string& name, int seconds) {
  asked += name + ", ";
  Hands::seconds += seconds;
}

/// A scope that says when it ends.
struct Scope {
  std::string name;
  explicit Scope(std::string of) : name(std::move(of)) {}
  Scope(Scope&& other) noexcept : name(std::exchange(other.name, "")) {}
  ~Scope() {
    if (!name.empty()) asked += "end of " + name + ", ";
  }
};

/// A training of one micro-batch, in which each call takes a while.
struct Whole {
  Scope unshard(const Parameter& parameter) {
    take("unshard " + parameter.name(), 16);
    return Scope(parameter.name());
  }
  Scope evaluate() { return Scope("the evaluation"); }
  void ready(const Parameter& parameter) { take("ready " + parameter.name(), 1); }
  void reduce_gradients() { take("reduce_gradients", 8); }
  void update_weights(const distx::StepOptions& options) {
    CHECK(options.learning_rate == 0.5);
    take("update_weights", 4);
  }
  void gather_weights() { take("gather_weights", 2); }
  [[nodiscard]] distx::observe::MemoryLedger memory() const {
    distx::observe::MemoryLedger ledger;
    ledger.weights.held = 123;
    return ledger;
  }
};

struct Several : Whole {
  static constexpr bool accumulates = true;
  Scope micro_batch(const distx::MicroBatchIndex& which) {
    take("micro-batch", 32);
    return Scope(which.index + 1 == which.count ? "the last" : "a micro-batch");
  }
};

const Parameter weight("weight", 1);
const Parameter bias("bias", 1);

}  // namespace

TEST_CASE("the time of a step is divided among its phases, and time between steps is not counted") {
  TimedTraining<float, Hands> training{Several()};
  for (int step = 1; step <= 2; ++step) {
    asked.clear();
    Hands::seconds += 1000;
    training.begin_step();
    {
      const auto weights = training.unshard(weight, bias);
      Hands::seconds += 100;
    }
    const auto scope = training.micro_batch({.index = 0, .count = 1});
    training.ready(bias);
    Hands::seconds += 64;
    training.step({.learning_rate = 0.5});
    CHECK(asked ==
          "unshard weight, unshard bias, end of weight, end of bias, micro-batch, ready bias, reduce_gradients, "
          "update_weights, gather_weights, ");
    CHECK(training.times().compute == step * (100 + 64));
    CHECK(training.times().communication == step * (2 * 16 + 32 + 1 + 8 + 2));
    CHECK(training.times().update == step * 4);
  }
}

TEST_CASE("scopes end where they end, and are the training's own") {
  TimedTraining<float, Hands> training{Several()};
  asked.clear();
  {
    const auto scope = training.micro_batch({.index = 0, .count = 2});
    training.ready(weight);
  }
  {
    const auto scope = training.micro_batch({.index = 1, .count = 2});
    training.ready(weight);
  }
  { const auto scope = training.evaluate(); }
  CHECK(asked ==
        "micro-batch, ready weight, end of a micro-batch, micro-batch, ready weight, end of the last, "
        "end of the evaluation, ");
}

TEST_CASE("a training that has no policy for micro-batches is asked for none") {
  TimedTraining<float, Hands> training{Whole()};
  asked.clear();
  {
    const auto scope = training.micro_batch({.index = 0, .count = 1});
    const auto weights = training.unshard(weight);
    training.ready(weight);
  }
  CHECK(asked == "unshard weight, ready weight, end of weight, ");
  CHECK(training.memory().weights.held == 123);
}

}  // namespace timed_training_test
