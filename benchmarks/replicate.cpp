// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The cost of Replicate and of .skip_nonfinite: steps of four million float parameters with AdamW and without any
// computation, on two processes in shared memory, plain and with each of them in alternating batches, so that load
// affects all alike.
#include <cstdio>
#include <vector>

#include <distx/distx.hpp>
#include <distx/file.hpp>
#include <distx/shm.hpp>

#include "timing/samples.hpp"

namespace {

constexpr int ranks = 2, batches = 15, steps = 10;
constexpr std::size_t parameters_each = 1'000'000, parameter_count = 4;

template <class... Policies>
class Subject {
 public:
  explicit Subject(distx::ShmCommunicator& comm, bool skip_nonfinite = false)
      : parameters_(make()), training_(comm, parameters_, distx::AdamW{}, {.skip_nonfinite = skip_nonfinite}) {}

  /// Returns the milliseconds of a step.
  double batch(distx::ShmCommunicator& comm) {
    distx::barrier(comm);
    const auto begin = timing::clock::now();
    for (int step = 0; step < steps; ++step) {
      for (const auto& parameter : parameters_) static_cast<void>(training_.gradient(parameter));
      training_.ready(parameters_);
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

template <int Stage>
void compare(distx::ShmCommunicator& comm) {
  Subject<distx::ZeRO<Stage>> without(comm), skipping(comm, true);
  Subject<distx::ZeRO<Stage>, distx::Replicate> with(comm);
  std::vector<double> times_without, times_with, times_skipping;
  for (int round = 0; round <= batches; ++round) {
    const double plain = without.batch(comm), copied = with.batch(comm), skipped = skipping.batch(comm);
    if (round == 0) continue;  // warms up
    times_without.push_back(plain);
    times_with.push_back(copied);
    times_skipping.push_back(skipped);
  }
  if (comm.rank() == 0)
    std::printf(
        "stage %d on %d ranks: a step takes %.1f ms, with Replicate %.1f ms, and with .skip_nonfinite %.1f ms "
        "(medians of %d)\n",
        Stage, comm.size(), timing::median(times_without), timing::median(times_with), timing::median(times_skipping),
        batches);
}

}  // namespace

int main() {
  distx::spawn_processes(ranks, [](distx::FileConnector& connector) {
    distx::ShmCommunicator comm(connector);
    compare<0>(comm);
    compare<2>(comm);
  });
}
