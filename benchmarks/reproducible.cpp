// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The cost of Reproducible<8>: steps of eight micro-batches of four million float parameters with AdamW, on two
// processes in shared memory, with it and with Accumulate in alternating batches, so that load affects all alike. A
// micro-batch reads all weights and writes all gradients once, and computes nothing else.
#include <cstdio>
#include <vector>

#include <distx/distx.hpp>
#include <distx/file.hpp>
#include <distx/shm.hpp>

#include "timing/samples.hpp"

namespace {

constexpr int ranks = 2, virtual_ranks = 8, batches = 15, steps = 5;
constexpr std::size_t parameters_each = 1'000'000, parameter_count = 4;

template <class... Policies>
class Subject {
 public:
  explicit Subject(distx::ShmCommunicator& comm) : parameters_(make()), training_(comm, parameters_, distx::AdamW{}) {}

  /// Returns the milliseconds of a step.
  double batch(distx::ShmCommunicator& comm) {
    constexpr std::size_t count = virtual_ranks / ranks;
    distx::barrier(comm);
    const auto begin = timing::clock::now();
    for (int step = 0; step < steps; ++step) {
      for (std::size_t i = 0; i < count; ++i) {
        const auto micro_batch = training_.micro_batch({.index = i, .count = count});
        for (auto parameter = parameters_.rbegin(); parameter != parameters_.rend(); ++parameter) {
          const auto value = parameter->value(), gradient = training_.gradient(*parameter);
          for (std::size_t k = 0; k < value.size(); ++k) gradient[k] += value[k] - 1;
          training_.ready(*parameter);
        }
      }
      training_.step({.learning_rate = 1e-3});
    }
    return 1e3 * timing::since(begin) / steps;
  }

 private:
  static std::vector<distx::Parameter<float>> make() {
    std::vector<distx::Parameter<float>> all;
    for (std::size_t i = 0; i < parameter_count; ++i) all.emplace_back("p" + std::to_string(i), parameters_each);
    return all;
  }

  std::vector<distx::Parameter<float>> parameters_;
  distx::DataParallel<Policies...> training_;
};

template <int Stage, class How>
void compare(distx::ShmCommunicator& comm, const char* how) {
  Subject<distx::ZeRO<Stage>, distx::Accumulate<How>> without(comm);
  Subject<distx::ZeRO<Stage>, distx::Reproducible<virtual_ranks>> with(comm);
  std::vector<double> times_without, times_with;
  for (int round = 0; round <= batches; ++round) {
    const double plain = without.batch(comm), reproducible = with.batch(comm);
    if (round == 0) continue;  // warms up
    times_without.push_back(plain);
    times_with.push_back(reproducible);
  }
  if (comm.rank() == 0)
    std::printf(
        "stage %d on %d ranks: a step takes %.1f ms with Accumulate<%s>, %.1f ms with Reproducible<%d> "
        "(medians of %d)\n",
        Stage, comm.size(), timing::median(times_without), how, timing::median(times_with), virtual_ranks, batches);
}

}  // namespace

int main() {
  distx::spawn_processes(ranks, [](distx::FileConnector& connector) {
    distx::ShmCommunicator comm(connector);
    compare<0, distx::Local>(comm, "Local");
    compare<2, distx::Sharded>(comm, "Sharded");
  });
}
