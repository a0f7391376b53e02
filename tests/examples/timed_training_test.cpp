// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "common/timed_training.hpp"

#include <chrono>
#include <string>

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

/// Writes down what it is asked for, and takes a while for each.
struct Asked {
  std::string what{};

  void take(const std::string& name, int seconds) {
    what += name;
    Hands::seconds += seconds;
  }
  void ready(int parameter) { take("ready " + std::to_string(parameter) + ", ", 1); }
  void reduce() { take("reduce, ", 8); }
  void update(int) { take("update, ", 4); }
  void gather() { take("gather", 2); }
};

struct Sharded : Asked {
  int unshard(int parameter) {
    take("unshard " + std::to_string(parameter) + ", ", 16);
    return parameter;
  }
  int evaluate() { return 7; }
};

}  // namespace

TEST_CASE("the time of a step is dealt out, and that between steps is not counted") {
  Sharded inner;
  TimedTraining<Sharded, Hands> training(inner);
  for (int step = 1; step <= 2; ++step) {
    inner.what.clear();
    Hands::seconds += 1000;
    training.begin_step();
    CHECK(training.unshard(3) == 3);
    Hands::seconds += 32;
    training.ready(4);
    Hands::seconds += 64;
    training.step(0);
    CHECK(inner.what == "unshard 3, ready 4, reduce, update, gather");
    CHECK(training.times().compute == step * (32 + 64));
    CHECK(training.times().communication == step * (16 + 1 + 8 + 2));
    CHECK(training.times().update == step * 4);
  }
  CHECK(training.evaluate() == 7);
}

TEST_CASE("gradients of all micro-batches but the last are withheld from a training that knows none") {
  Asked inner;
  TimedTraining training(inner);
  for (const bool last : {false, false, true}) {
    const auto scope = training.micro_batch(last);
    const auto weights = training.unshard(1);
    training.ready(last ? 2 : 1);
  }
  CHECK(inner.what == "ready 2, ");
}
