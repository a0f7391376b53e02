// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/comm/decorators/metered.hpp>

#include <numeric>

#include "stages.hpp"

using namespace distx::literals;

namespace compress_test {

namespace {

using distx::bfloat16;
using distx::float16;
using distx::hooks::BucketShape;
using distx::hooks::GradientBucket;

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

/// Weights and sent bytes of this rank after three steps; `gradient(parameter, i, step)` replaces the toy's gradients.
struct Trained {
  std::vector<float> weights;
  std::size_t sent = 0;
};

template <class... Policies>
Trained train(distx::ThreadCommunicator& comm, const distx::DataParallelOptions& options, bool borrowed = false) {
  distx::Metered<distx::ThreadCommunicator> metered(comm.share());
  auto parameters = stages::owned();
  toy::Model model;
  auto refs = model.parameters();
  distx::DataParallel<distx::ZeRO<distx::Dynamic>, Policies...> training(
      metered, borrowed ? distx::ParameterList<>(refs) : distx::ParameterList<>(parameters),
      distx::AdamW{.weight_decay = 0.125}, options);
  const auto before = metered.ledger();
  for (std::size_t step = 0; step < 3; ++step) {
    const std::size_t sample = 10 * step + static_cast<std::size_t>(comm.rank());
    if (borrowed)
      stages::pass(training, refs, sample);
    else
      stages::pass(training, parameters, sample);
    training.step({.learning_rate = 0.01});
  }
  Trained result{{}, (metered.ledger() - before).total().sent_bytes};
  if (borrowed) {
    result.weights = model.weights();
    return result;
  }
  for (const auto& parameter : parameters) {
    const auto weights = training.unshard(parameter);
    result.weights.insert(result.weights.end(), parameter.value().begin(), parameter.value().end());
  }
  return result;
}

/// Checks that a training gives the same weights at every stage, in every way and on every rank.
template <class... Policies>
std::vector<float> check_same_bits(int ranks) {
  CAPTURE(ranks);
  std::vector<float> expected;
  stages::for_each_way({}, 3, [&](const auto& options, bool borrowed) {
    std::vector<Trained> all(static_cast<std::size_t>(ranks));
    toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
      all[static_cast<std::size_t>(comm.rank())] = train<Policies...>(comm, options, borrowed);
    });
    if (expected.empty()) expected = all.front().weights;
    for (const auto& each : all) CHECK(toy::same_bits(each.weights, expected));
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

}  // namespace compress_test
