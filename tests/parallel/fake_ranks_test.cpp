// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/comm/decorators/metered.hpp>
#include <distx/fake.hpp>
#include <distx/training.hpp>

#include "stages.hpp"

using namespace distx::literals;

namespace {

using Meter = distx::Metered<distx::FakeCommunicator>;

constexpr std::size_t large_layers = 4, layer_weights = 1 << 18;

struct FakeStep {
  distx::observe::MemoryLedger memory;
  std::uint64_t sent = 0;
  std::chrono::nanoseconds took{0}, waited{0};
};

/// The second of two steps of a model of 2^20 weights on one of many ranks.
template <class Training = stages::Training>
FakeStep fake_step(int rank, int ranks, const distx::DataParallelOptions& options) {
  distx::FakeCommunicator comm(rank, ranks, distx::WireSpeed{std::chrono::microseconds(5), 1e10});
  Meter meter(comm.share());
  std::vector<distx::Parameter<float>> parameters;
  for (std::size_t p = 0; p < large_layers; ++p) parameters.emplace_back("large" + std::to_string(p), layer_weights);
  Training training(meter, parameters, distx::AdamW{}, options);
  FakeStep step;
  for (int k = 0; k < 2; ++k) {
    const auto before = meter.ledger();
    const auto began = comm.now(), waited = comm.waited();
    for (const auto& parameter : parameters) {
      const auto weights = training.unshard(parameter);
      comm.compute(std::chrono::milliseconds(1));
    }
    for (std::size_t p = parameters.size(); p-- > 0;) {
      const auto weights = training.unshard(parameters[p]);
      static_cast<void>(training.gradient(parameters[p]));
      comm.compute(std::chrono::milliseconds(2));
      training.ready(parameters[p]);
    }
    training.step({.learning_rate = 0.1});
    step = {training.memory(), (meter.ledger() - before).total().sent_bytes, comm.now() - began,
            comm.waited() - waited};
  }
  return step;
}

}  // namespace

TEST_CASE("a fake rank holds what the formula says, at every stage and any number of ranks") {
  for (const int ranks : {2, 64, 16384})
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(ranks);
      CAPTURE(stage);
      const auto step = fake_step(ranks / 2 - 1, ranks, {.bucket_bytes = 1_MiB, .stage = stage});
      const auto plan = distx::plan(large_layers * layer_weights, static_cast<std::uint64_t>(ranks), stage);
      CHECK(step.memory.weights.held == plan.weights);
      CHECK(step.memory.gradients.held == plan.gradients);
      CHECK(step.memory.optimizer.held == plan.optimizer);
      const std::size_t whole = sizeof(float) * layer_weights * large_layers;
      CHECK(step.memory.in_flight.peak <= (stage < 2 ? 0 : stage == 2 ? whole : 2 * whole));
      CHECK(step.sent >= plan.sent);
      CHECK(step.sent <= plan.sent + 4096);
    }
}

TEST_CASE("computation hides the calls of a fake rank's step in simulated time") {
  const auto blocking = fake_step(3, 1024, {.bucket_bytes = 1_MiB, .overlap = false, .stage = 0});
  const auto overlapped = fake_step(3, 1024, {.bucket_bytes = 1_MiB, .overlap = true, .stage = 0});
  const auto computed = std::chrono::milliseconds(12);
  CHECK(blocking.took == computed + blocking.waited);
  CHECK(overlapped.took == computed + overlapped.waited);
  CHECK(3 * overlapped.waited < blocking.waited);  // of four buckets only the last is exposed
}

TEST_CASE("a training on fake ranks, which all have the same gradients, has the bits of one rank at stage 0") {
  const auto weights = [](auto&& comm) {
    auto parameters = stages::owned();
    stages::Training training(comm, parameters, distx::AdamW{}, {.bucket_bytes = 4_KiB, .stage = 0});
    for (std::size_t step = 0; step < 3; ++step) {
      stages::pass(training, parameters, step);
      training.step({.learning_rate = 0.01});
    }
    std::vector<float> all;
    for (const auto& p : parameters) all.insert(all.end(), p.value().begin(), p.value().end());
    return all;
  };
  distx::SelfConnector alone;
  const auto expected = weights(distx::SerialCommunicator(alone));
  CHECK(weights(distx::FakeCommunicator(11, 4096)) == expected);
}

TEST_CASE("a fake rank of Hybrid shards in its group") {
  using Hybrid = distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Hybrid>;
  const auto step = fake_step<Hybrid>(37, 1024, {.bucket_bytes = 1_MiB, .stage = 2, .group_ranks = 8});
  CHECK(step.memory.optimizer.held == distx::plan(large_layers * layer_weights, 8, 2).optimizer);
}
