// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/comm/decorators/metered.hpp>
#include <distx/training.hpp>

#include "stages.hpp"

using namespace distx::literals;

namespace {

using Meter = distx::Metered<distx::ThreadCommunicator>;
using distx::bfloat16;

/// Both precisions: float32 in all, and bfloat16 with master weights.
template <class T>
struct Precisions {
  using Training = stages::Training;
  static constexpr distx::BytesPerParameter bytes = distx::full_precision<>;
};
template <>
struct Precisions<bfloat16> {
  using Training = distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Precision<bfloat16>>;
  static constexpr distx::BytesPerParameter bytes = distx::mixed_precision<>;
};

/// Returns parameters of the given sizes, three to a unit.
template <class T>
std::vector<distx::Parameter<T>> model(const std::vector<std::size_t>& sizes) {
  std::vector<distx::Parameter<T>> parameters;
  for (std::size_t p = 0; p < sizes.size(); ++p) parameters.emplace_back(stages::name(p), sizes[p]);
  return parameters;
}

/// The memory and communication of one step on one rank.
struct Seen {
  distx::observe::MemoryLedger memory;
  distx::observe::Ledger traffic;
  std::size_t buckets = 0;
};

/// One unshard of each unit forward and one backward.
template <class Training, class T>
void forward_and_backward(Training& training, const std::vector<distx::Parameter<T>>& parameters) {
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

template <class T = float>
std::vector<Seen> step(int ranks, const std::vector<std::size_t>& sizes, const distx::DataParallelOptions& options,
                       bool borrowed = false) {
  std::vector<Seen> all(static_cast<std::size_t>(ranks));
  toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
    Seen& seen = all[static_cast<std::size_t>(comm.rank())];
    Meter meter(comm.share());
    auto parameters = model<T>(sizes);
    std::vector<std::vector<T>> arrays(2 * sizes.size());
    std::vector<distx::ParameterRef<T>> refs;
    for (std::size_t p = 0; p < sizes.size(); ++p) {
      for (const std::size_t k : {2 * p, 2 * p + 1}) arrays[k].resize(sizes[p]);
      refs.push_back(distx::ref(stages::name(p), arrays[2 * p], arrays[2 * p + 1]));
    }
    typename Precisions<T>::Training training(
        meter, borrowed ? distx::ParameterList<>(refs) : distx::ParameterList<>(parameters), distx::AdamW{}, options);
    seen.buckets = training.bucket_count();
    distx::observe::Ledger before;
    for (int k = 0; k < 2; ++k) {  // in the second step the order of units is known
      before = meter.ledger();
      if (borrowed)
        training.ready(refs);
      else
        forward_and_backward(training, parameters);
      training.step({.learning_rate = 0.1});
    }
    seen.memory = training.memory();
    seen.traffic = meter.ledger() - before;
  });
  return all;
}

/// How many elements there would be if each parameter filled lines of 64 bytes.
template <class T>
std::size_t padded(const std::vector<std::size_t>& sizes) {
  std::size_t elements = 0;
  for (const auto size : sizes) elements += distx::detail::round_up_to_lines(sizeof(T) * size) / sizeof(T);
  return elements;
}

/// @param maps  whether ranks read each other's weights in place
template <class T>
void check_held(const std::vector<std::size_t>& sizes, bool maps) {
  constexpr auto each = Precisions<T>::bytes;
  constexpr std::size_t workspace = std::same_as<T, float> ? 0 : 4 * 16384;  // where short gradients are converted
  const std::size_t elements = padded<T>(sizes);
  for (const int ranks : {1, 2, 3, 4, 7, 8})
    for (const int stage : {0, 1, 2, 3})
      for (const std::size_t bytes : {0_KiB, 4_KiB, distx::unlimited}) {
        CAPTURE(ranks);
        CAPTURE(stage);
        CAPTURE(bytes);
        const auto n = static_cast<std::size_t>(ranks);
        const auto plan = distx::plan(elements, n, stage, each, {.map_weights = maps, .share_weights = maps});
        const auto all =
            step<T>(ranks, sizes, {.bucket_bytes = bytes, .stage = stage, .map_weights = maps, .share_weights = maps});
        const std::size_t line = 64 / sizeof(T) * (all.front().buckets + 1);  // parts of a bucket differ by one line
        std::size_t weights = 0, gradients = 0, optimizer = 0;
        for (const auto& seen : all) {
          const auto& memory = seen.memory;
          const auto is = [&](const distx::observe::MemoryLedger::Use& use, std::uint64_t planned,
                              std::size_t bytes_each, bool shared) {
            if (!shared) return use.held == planned;
            return use.held + line * bytes_each >= planned && use.held <= planned + line * bytes_each;
          };
          CHECK(is(memory.weights, plan.weights, each.weights, stage == 3 || maps));
          CHECK(is(memory.gradients, plan.gradients, each.gradients, stage >= 2));
          CHECK(is(memory.optimizer, plan.optimizer, each.optimizer, stage >= 1 || maps));
          weights += memory.weights.held;
          gradients += memory.gradients.held;
          optimizer += memory.optimizer.held;
          const std::size_t whole = elements * each.weights;
          // The pools have sufficed, but for the first values of shared weights, of one bucket at a time.
          const std::size_t first = maps && stage < 2 ? whole : 0;
          CHECK(memory.in_flight.peak >= memory.in_flight.held);
          CHECK(memory.in_flight.peak <= memory.in_flight.held + first);
          CHECK(memory.in_flight.held <= (stage < 2 ? 0 : stage == 2 || maps ? whole : 2 * whole) + workspace);
          CHECK(memory.total.held ==
                memory.weights.held + memory.gradients.held + memory.optimizer.held + memory.in_flight.held);
          CHECK(memory.total.peak >= memory.total.held);
        }
        if (maps) CHECK(weights == elements * each.weights);
        if (stage == 3 && !maps) CHECK(weights >= elements * each.weights);  // every rank as much as the one with most
        if (stage >= 2) CHECK(gradients == elements * each.gradients);
        if (stage >= 1 || maps) CHECK(optimizer == elements * each.optimizer);
      }
}

template <class T>
void check_sent(const std::vector<std::size_t>& sizes, bool maps) {
  for (const int ranks : {1, 2, 3, 4, 7, 8})
    for (const int stage : {0, 1, 2, 3})
      for (const bool borrowed : {false, true})
        for (const bool overlap : {false, true}) {
          if (borrowed && stage >= 2) continue;
          CAPTURE(ranks);
          CAPTURE(stage);
          CAPTURE(borrowed);
          std::size_t sent = 0, received = 0;
          for (const auto& seen : step<T>(ranks, sizes,
                                          {.bucket_bytes = 4_KiB,
                                           .overlap = overlap,
                                           .stage = stage,
                                           .map_weights = maps,
                                           .share_weights = maps},
                                          borrowed)) {
            sent += seen.traffic.total().sent_bytes;
            received += seen.traffic.total().received_bytes;
          }
          CHECK(sent == (maps && !borrowed ? 1
                         : stage < 3       ? 2
                                           : 3) *
                            sizeof(T) * padded<T>(sizes) * static_cast<std::size_t>(ranks - 1));
          CHECK(received == sent);
        }
}

}  // namespace

TEST_CASE("bytes held equal the formula plus padding and buckets in flight") {
  const std::vector<std::size_t> sizes = {17, 1, 20000, 64, 3, 1000, 33, 7};
  for (const bool maps : {true, false}) {
    CAPTURE(maps);
    check_held<float>(sizes, maps);
    check_held<bfloat16>(sizes, maps);
  }
}

TEST_CASE("pools hold three buckets and two units, regardless of the size of the model") {
  const std::vector<std::size_t> sizes(30, 1024);
  for (const bool maps : {true, false})
    for (const auto& seen : step(2, sizes, {.bucket_bytes = 4_KiB, .stage = 3, .map_weights = maps})) {
      CHECK(seen.buckets == 30);
      CHECK(seen.memory.in_flight.held == (3 + (maps ? 0 : 2 * 3)) * 4_KiB);  // three buckets, two units of three
      CHECK(seen.memory.in_flight.peak == seen.memory.in_flight.held);
    }
}

TEST_CASE(
    "a step sends 2, 2, 2 and 3 times the parameters at stages 0 to 3, without each rank's own shard; 1 if weights are "
    "shared or mapped") {
  const std::vector<std::size_t> sizes = {64, 32, 20000, 64, 32, 1056, 32, 160};  // whole lines
  for (const bool maps : {true, false}) {
    CAPTURE(maps);
    check_sent<float>(sizes, maps);
    check_sent<bfloat16>(sizes, maps);
    for (const int stage : {0, 1, 2, 3}) {  // the plan's own figure, of the rank that sends most
      std::size_t sent = 0;
      for (const auto& seen : step(4, sizes, {.stage = stage, .map_weights = maps, .share_weights = maps}))
        sent += seen.traffic.total().sent_bytes;
      CHECK(sent == 4 * distx::plan(padded<float>(sizes), 4, stage, distx::full_precision<>,
                                    {.map_weights = maps, .share_weights = maps})
                            .sent);
    }
  }
}
