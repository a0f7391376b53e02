// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/comm/decorators/metered.hpp>
#include <distx/parallel/hooks/power_sgd.hpp>
#include <distx/parallel/hooks/quantized_blocks.hpp>

#include <numeric>

#include "stages.hpp"

using namespace distx::literals;

namespace compress_test {

namespace {

using distx::bfloat16;
using distx::float16;
using distx::hooks::BucketShape;
using distx::hooks::GradientBucket;
using distx::hooks::PowerSGD;
using distx::hooks::QuantizedBlocks;

/// The built-in average, as a hook.
struct Average {
  static std::size_t state_size(const BucketShape&) { return 0; }
  static void reduce(const GradientBucket& bucket) {
    if (bucket.shape.whole)
      distx::all_reduce(bucket.comm, bucket.gradients, bucket.averages, distx::average, bucket.location);
    else
      distx::reduce_scatter(bucket.comm, bucket.gradients, bucket.averages, distx::average, bucket.shape.counts,
                            bucket.location);
  }
};
static_assert(distx::hooks::GradientHook<Average> && !distx::hooks::GradientHook<float>);

struct Shape {
  const char* name;
  std::size_t rows, columns;  // no rows: a vector
};
constexpr Shape shapes[] = {
    {"embedding.weight", 90, 33}, {"a.weight", 24, 40}, {"a.bias", 0, 24},     {"a.scale", 0, 1},
    {"b.weight", 7, 5},           {"b.bias", 0, 7},     {"c.weight", 100, 200}};

std::size_t elements(const Shape& shape) { return std::max<std::size_t>(1, shape.rows) * shape.columns; }

float target(std::size_t p, std::size_t i, std::size_t sample) { return static_cast<float>(toy::target(p, i, sample)); }

/// What a training leaves on one rank.
struct Trained {
  std::vector<float> weights;
  std::size_t sent = 0;
  distx::observe::MemoryLedger memory{};
};

struct Way {
  distx::DataParallelOptions options{};
  bool borrowed = false;
  std::size_t steps = 3;
  double rate = 0.01;
};

/// Trains towards the mean of the ranks' targets, which are other ones in each step.
template <class... Policies, class Optimizer = distx::AdamW>
Trained train(distx::ThreadCommunicator& comm, const Way& way, const Optimizer& optimizer = {}) {
  distx::Metered<distx::ThreadCommunicator> metered(comm.share());
  std::vector<distx::Parameter<float>> parameters;
  std::vector<std::vector<float>> arrays(2 * std::size(shapes));
  std::vector<distx::ParameterRef<float>> refs;
  for (std::size_t p = 0; p < std::size(shapes); ++p) {
    const auto initialize = [p](distx::Span<float> values) {
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(toy::first_weight(p, i));
    };
    const distx::ParameterOptions options{.rows = shapes[p].rows};
    parameters.emplace_back(shapes[p].name, elements(shapes[p]), initialize, options);
    for (const std::size_t k : {2 * p, 2 * p + 1}) arrays[k].resize(elements(shapes[p]));
    initialize(arrays[2 * p]);
    refs.push_back(distx::ref(shapes[p].name, arrays[2 * p], arrays[2 * p + 1], options));
  }
  distx::DataParallel<distx::ZeRO<distx::Dynamic>, Policies...> training(
      metered, way.borrowed ? distx::ParameterList<>(refs) : distx::ParameterList<>(parameters), optimizer,
      way.options);
  const auto before = metered.ledger();
  for (std::size_t step = 0; step < way.steps; ++step) {
    const std::size_t sample = 10 * step + static_cast<std::size_t>(comm.rank());
    const auto pass = [&](const auto& all) {
      for (std::size_t p = std::size(shapes); p-- > 0;) {
        const auto weights = training.unshard(all[p]);
        const auto value = training.value(all[p]);
        const auto gradient = training.gradient(all[p]);
        for (std::size_t i = 0; i < value.size(); ++i) gradient[i] = value[i] - target(p, i, sample);
        training.ready(all[p]);
      }
    };
    way.borrowed ? pass(refs) : pass(parameters);
    training.step({.learning_rate = way.rate});
  }
  Trained result{{}, (metered.ledger() - before).total().sent_bytes, training.memory()};
  for (std::size_t p = 0; p < std::size(shapes); ++p) {
    const auto weights = training.unshard(parameters[p]);
    const auto values = way.borrowed ? distx::Span<float>(arrays[2 * p]) : parameters[p].value();
    result.weights.insert(result.weights.end(), values.begin(), values.end());
  }
  return result;
}

template <class... Policies>
std::vector<Trained> train_on(int ranks, const Way& way) {
  std::vector<Trained> all(static_cast<std::size_t>(ranks));
  toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
    all[static_cast<std::size_t>(comm.rank())] = train<Policies...>(comm, way);
  });
  for (const auto& each : all) CHECK(toy::same_bits(each.weights, all.front().weights));
  return all;
}

/// Checks that a training gives the same weights at every stage, in every way and on every rank.
template <class... Policies>
std::vector<float> check_same_bits(int ranks) {
  CAPTURE(ranks);
  std::vector<float> expected;
  stages::for_each_way({}, 3, [&](const auto& options, bool borrowed) {
    const auto all = train_on<Policies...>(ranks, {options, borrowed});
    if (expected.empty()) expected = all.front().weights;
    CHECK(toy::same_bits(all.front().weights, expected));
  });
  return expected;
}

}  // namespace

TEST_CASE("gradients that are sent in 16 bits give the same weights at every stage, rounded once") {
  for (const int ranks : {1, 2, 3, 4}) {
    const auto weights = check_same_bits<distx::Compress<bfloat16>>(ranks);
    const auto exact = check_same_bits<>(ranks);
    CHECK((ranks == 1) == toy::same_bits(weights, exact));
    double largest = 0;
    for (std::size_t i = 0; i < weights.size(); ++i)
      largest = std::max(largest, std::abs(double{weights[i]} - double{exact[i]}));
    CHECK(largest < 0.02);  // AdamW moves each weight by at most 0.01 in a step
  }
  check_same_bits<distx::Compress<float16>>(3);
}

TEST_CASE("a hook that averages gives the bits of the built-in reduction") {
  for (const int ranks : {1, 2, 3, 4})
    CHECK(toy::same_bits(check_same_bits<distx::Compress<Average>>(ranks), check_same_bits<>(ranks)));
}

TEST_CASE("PowerSGD gives the same weights at every stage, for every size of buckets") {
  for (const int ranks : {1, 2, 3, 4})
    CHECK((ranks == 1) ==
          toy::same_bits(check_same_bits<distx::Compress<PowerSGD<2>>>(ranks), check_same_bits<>(ranks)));
}

TEST_CASE("gradients of 8 bits give the same weights on every rank, near those of float") {
  for (const int ranks : {1, 2, 3, 4})
    stages::for_each_way({}, 3, [&](const auto& options, bool borrowed) {
      CAPTURE(ranks);
      const auto compressed = train_on<distx::Compress<QuantizedBlocks<>>>(ranks, {options, borrowed});
      const auto exact = train_on<>(ranks, {options, borrowed});
      double largest = 0;
      for (std::size_t i = 0; i < exact.front().weights.size(); ++i)
        largest = std::max(largest, std::abs(double{compressed.front().weights[i]} - double{exact.front().weights[i]}));
      CHECK((largest == 0) == (ranks == 1));
      CHECK(largest < 0.04);
    });
}

}  // namespace compress_test
