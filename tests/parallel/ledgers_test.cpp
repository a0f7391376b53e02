// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <distx/comm/decorators/metered.hpp>
#include <doctest/doctest.h>

#include "stages.hpp"

using namespace distx::literals;

namespace {

using Meter = distx::Metered<distx::ThreadCommunicator>;

/// Parameters of so many elements, three to a unit.
std::vector<distx::Parameter<float>> model(const std::vector<std::size_t>& sizes) {
  std::vector<distx::Parameter<float>> parameters;
  for (std::size_t p = 0; p < sizes.size(); ++p) parameters.emplace_back(stages::name(p), sizes[p]);
  return parameters;
}

/// What every rank has seen of one step of one model.
struct Seen {
  distx::MemoryLedger memory;
  distx::Ledger traffic;
  std::size_t buckets = 0;
};

/// One unshard of each unit forward and one backward.
void forward_and_backward(stages::Training& training, const std::vector<distx::Parameter<float>>& parameters) {
  const std::size_t units = (parameters.size() + 2) / 3;
  for (std::size_t unit = 0; unit < units; ++unit) static_cast<void>(training.unshard(parameters[3 * unit]));
  for (std::size_t unit = units; unit-- > 0;) {
    const auto weights = training.unshard(parameters[3 * unit]);
    for (std::size_t p = std::min(3 * unit + 3, parameters.size()); p-- > 3 * unit;) {
      static_cast<void>(training.gradient(parameters[p]));
      training.ready(parameters[p]);
    }
  }
}

std::vector<Seen> step(int ranks, const std::vector<std::size_t>& sizes, const distx::DataParallelOptions& options,
                       bool borrowed = false) {
  std::vector<Seen> all(static_cast<std::size_t>(ranks));
  toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
    Seen& seen = all[static_cast<std::size_t>(comm.rank())];
    Meter meter(comm.share());
    auto parameters = model(sizes);
    std::vector<std::vector<float>> arrays(2 * sizes.size());
    std::vector<distx::ParameterRef<float>> refs;
    for (std::size_t p = 0; p < sizes.size(); ++p) {
      for (const std::size_t k : {2 * p, 2 * p + 1}) arrays[k].resize(sizes[p]);
      refs.push_back(distx::ref(stages::name(p), arrays[2 * p], arrays[2 * p + 1]));
    }
    stages::Training training(meter, borrowed ? distx::ParameterList<>(refs) : distx::ParameterList<>(parameters),
                              distx::AdamW{}, options);
    seen.buckets = training.bucket_count();
    distx::Ledger before;
    for (int k = 0; k < 2; ++k) {  // in the second step the order of units is known
      before = meter.ledger();
      if (borrowed) training.ready(refs);
      else forward_and_backward(training, parameters);
      training.step({.learning_rate = 0.1});
    }
    seen.memory = training.memory();
    seen.traffic = meter.ledger() - before;
  });
  return all;
}

/// The same, each parameter on 64 bytes.
std::size_t padded(const std::vector<std::size_t>& sizes) {
  std::size_t bytes = 0;
  for (const auto size : sizes) bytes += distx::whole_lines(4 * size);
  return bytes;
}

}  // namespace

TEST_CASE("bytes held are those of the formula, padding, and what is in flight") {
  const std::vector<std::size_t> sizes = {17, 1, 20000, 64, 3, 1000, 33, 7};
  const std::size_t psi = padded(sizes);
  for (const int ranks : {1, 2, 3, 4, 7, 8})
    for (const int stage : {0, 1, 2, 3})
      for (const std::size_t bytes : {0_KiB, 4_KiB, distx::unlimited}) {
        CAPTURE(ranks);
        CAPTURE(stage);
        CAPTURE(bytes);
        const auto n = static_cast<std::size_t>(ranks);
        const auto all = step(ranks, sizes, {.bucket_bytes = bytes, .stage = stage});
        std::size_t gradients = 0, optimizer = 0;
        for (const auto& seen : all) {
          const auto& memory = seen.memory;
          const std::size_t line = 64 * (all.front().buckets + 1);  // a bucket's parts differ by a line at most
          gradients += memory.gradients.held;
          optimizer += memory.optimizer.held;
          if (stage < 3) CHECK(memory.weights.held == psi);
          else CHECK((memory.weights.held >= psi / n && memory.weights.held <= psi / n + line));
          if (stage < 2) CHECK(memory.gradients.held == psi);
          else CHECK((memory.gradients.held + line >= psi / n && memory.gradients.held <= psi / n + line));
          if (stage == 0) CHECK(memory.optimizer.held == 2 * psi);
          else CHECK((memory.optimizer.held + 2 * line >= 2 * psi / n));
          if (stage > 0) CHECK(memory.optimizer.held <= 2 * (psi / n + line));
          if (stage < 2) CHECK(memory.in_flight.held == 0);
          CHECK(memory.in_flight.peak == memory.in_flight.held);  // the pools have sufficed
          CHECK(memory.in_flight.held <= (stage < 2 ? 0 : stage == 2 ? psi : 2 * psi));
          CHECK(memory.total.held == memory.weights.held + memory.gradients.held + memory.optimizer.held +
                                         memory.in_flight.held);
          CHECK(memory.total.peak >= memory.total.held);
        }
        if (stage >= 2) CHECK(gradients == psi);
        if (stage >= 1) CHECK(optimizer == 2 * psi);
      }
}

TEST_CASE("pools hold a few buckets and units, however many there are") {
  const std::vector<std::size_t> sizes(30, 1024);
  const auto all = step(2, sizes, {.bucket_bytes = 4_KiB, .stage = 3});
  for (const auto& seen : all) {
    CHECK(seen.buckets == 30);
    CHECK(seen.memory.in_flight.held == (3 + 2 * 3) * 4_KiB);  // three buckets, two units of three
    CHECK(seen.memory.in_flight.peak == seen.memory.in_flight.held);
  }
}

TEST_CASE("bytes sent are 2, 2, 2 and 3 times the parameters, a rank's own left out") {
  const std::vector<std::size_t> sizes = {48, 16, 20000, 64, 16, 1040, 32, 160};  // whole lines
  const std::size_t psi = padded(sizes);
  for (const int ranks : toy::rank_counts)
    for (const int stage : {0, 1, 2, 3})
      for (const bool borrowed : {false, true})
        for (const bool overlap : {false, true}) {
          if (borrowed && stage >= 2) continue;
          CAPTURE(ranks);
          CAPTURE(stage);
          CAPTURE(borrowed);
          std::size_t sent = 0, received = 0;
          for (const auto& seen : step(ranks, sizes, {.bucket_bytes = 4_KiB, .overlap = overlap, .stage = stage},
                                       borrowed)) {
            sent += seen.traffic.total().sent_bytes;
            received += seen.traffic.total().received_bytes;
          }
          CHECK(sent == (stage == 3 ? 3 : 2) * psi * static_cast<std::size_t>(ranks - 1));
          CHECK(received == sent);
        }
}
