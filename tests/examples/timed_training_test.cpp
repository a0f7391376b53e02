// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "common/timed_training.hpp"

#include <chrono>
#include <string>
#include <utility>

#include <doctest/doctest.h>

using namespace examples;

namespace {

/// A clock that goes when told.
struct Hands {
  using duration = std::chrono::seconds;
  using time_point = std::chrono::time_point<Hands, duration>;
  static inline int seconds = 0;
  static time_point now() { return time_point(duration(seconds)); }
};

using Parameter = distx::Parameter<float>;

/// What was asked for, in its order.
std::string asked;

void take(const std::string& name, int seconds) {
  asked += name + ", ";
  Hands::seconds += seconds;
}

/// A training of stage 0, in which each call takes a while.
struct Whole {
  void ready(const Parameter& parameter) { take("ready " + parameter.name(), 1); }
  void reduce() { take("reduce", 8); }
  void update(const distx::StepOptions& options) {
    CHECK(options.learning_rate == 0.5);
    take("update", 4);
  }
  void gather() { take("gather", 2); }
};

/// Its scopes say when they end.
struct Sharded : Whole {
  struct Scope {
    std::string name;
    explicit Scope(std::string of) : name(std::move(of)) {}
    Scope(Scope&& other) noexcept : name(std::exchange(other.name, "")) {}
    ~Scope() {
      if (!name.empty()) asked += "end of " + name + ", ";
    }
  };
  Scope unshard(const Parameter& parameter) {
    take("unshard " + parameter.name(), 16);
    return Scope(parameter.name());
  }
  Scope micro_batch(bool last) { return Scope(last ? "the last" : "a micro-batch"); }
  Scope evaluate() { return Scope("the evaluation"); }
};

const Parameter weight("weight", 1);
const Parameter bias("bias", 1);

}  // namespace

TEST_CASE("the time of a step is dealt out, and that between steps is not counted") {
  TimedTraining<float, Hands> training{Sharded()};
  for (int step = 1; step <= 2; ++step) {
    asked.clear();
    Hands::seconds += 1000;
    training.begin_step();
    {
      const auto weights = training.unshard(weight, bias);
      Hands::seconds += 32;
    }
    training.ready(bias);
    Hands::seconds += 64;
    training.step({.learning_rate = 0.5});
    CHECK(asked == "unshard weight, unshard bias, end of weight, end of bias, ready bias, reduce, update, gather, ");
    CHECK(training.times().compute == step * (32 + 64));
    CHECK(training.times().communication == step * (2 * 16 + 1 + 8 + 2));
    CHECK(training.times().update == step * 4);
  }
}

TEST_CASE("scopes end where they end, and are the training's own") {
  TimedTraining<float, Hands> training{Sharded()};
  asked.clear();
  {
    const auto scope = training.micro_batch(false);
    training.ready(weight);
  }
  {
    const auto scope = training.micro_batch(true);
    training.ready(weight);
  }
  { const auto scope = training.evaluate(); }
  CHECK(asked == "ready weight, end of a micro-batch, ready weight, end of the last, end of the evaluation, ");
}

TEST_CASE("gradients of all micro-batches but the last are withheld from a training that knows none") {
  TimedTraining<float, Hands> training{Whole()};
  asked.clear();
  for (const bool last : {false, false, true}) {
    const auto scope = training.micro_batch(last);
    const auto weights = training.unshard(weight);
    training.ready(last ? weight : bias);
  }
  CHECK(asked == "ready weight, ");
}
