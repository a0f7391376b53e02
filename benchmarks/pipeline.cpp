// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Times the steps of pipelines whose stages compute on devices, which leave the cores free, against the schedules'
// planned times. benchmarks/pipeline.py runs PyTorch's in turn.
#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <distx/distx.hpp>
#include <distx/parallel/pipeline/picture.hpp>
#include <distx/parallel/pipeline/pipeline.hpp>

#include "common/backend.hpp"
#include "common/run.hpp"
#include "timing/samples.hpp"

namespace {

using Any = distx::AnyCommunicator<>;
using distx::pipeline::Durations;
using timing::clock;
using timing::median;
using timing::since;

struct One {};
using Mesh = distx::Mesh<One>;
struct NoTraining {};

struct Settings {
  examples::Backend backend;
  int micro_batches = 8;
  int chunks = 2;
  double milliseconds = 10;
  std::size_t kib = 256;
  int rounds = 9;
  bool picture = false;

  Settings() { backend.name = "gloo"; }

  void describe(CLI::App& app) {
    const CLI::Range count(1, 1000000);
    backend.describe(app);
    app.add_option("--micro-batches", micro_batches, "of a step")->check(count)->capture_default_str();
    app.add_option("--chunks", chunks, "of the interleaved schedule")->check(count)->capture_default_str();
    app.add_option("--milliseconds", milliseconds, "of a rank's forward pass and of each half of its backward pass")
        ->capture_default_str();
    app.add_option("--kib", kib, "of the tensor between stages")->check(count)->capture_default_str();
    app.add_option("--rounds", rounds, "steps of each schedule, besides one to warm up")
        ->check(count)
        ->capture_default_str();
    app.add_flag("--picture", picture, "draw each schedule as planned and as run");
  }
};

void compute(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

/// A stage that takes its time, and passes on what it gets.
struct Stage {
  using edge = distx::DistTensor<float, 1, Mesh, distx::Layout<>>;
  struct activations {};
  struct weight_work {};

  [[nodiscard]] edge::spec_type edge_spec() const { return {mesh, {elements}}; }
  [[nodiscard]] distx::layers::Forward<std::optional<edge>, activations> forward(std::optional<edge> input, int,
                                                                                 NoTraining&) const {
    compute(durations.forward);
    return {last ? std::nullopt : passed_on(std::move(input)), {}};
  }
  [[nodiscard]] std::optional<edge> backward(activations, std::optional<edge> gradient, int, NoTraining&) const {
    compute(durations.backward_input + durations.backward_weight);
    return first ? std::nullopt : passed_on(std::move(gradient));
  }
  [[nodiscard]] std::pair<std::optional<edge>, weight_work> backward_input(activations, std::optional<edge> gradient,
                                                                           int, NoTraining&) const {
    compute(durations.backward_input);
    return {first ? std::nullopt : passed_on(std::move(gradient)), weight_work()};
  }
  void backward_weight(weight_work, int, NoTraining&) const { compute(durations.backward_weight); }

  [[nodiscard]] std::optional<edge> passed_on(std::optional<edge> tensor) const {
    return tensor ? std::move(tensor) : edge(edge_spec());
  }

  Mesh mesh;
  std::size_t elements;
  bool first, last;
  Durations durations;
};

template <class Schedule>
void measure(Any& comm, const Mesh& mesh, const Settings& settings, const Schedule& schedule) {
  const auto& itself = plain(schedule);
  const int chunks = itself.shape().chunks, count = chunks * comm.size();
  const double seconds = 1e-3 * settings.milliseconds / chunks;
  const Durations durations{seconds, seconds, seconds};
  std::vector<Stage> stages;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int index = chunk * comm.size() + comm.rank();
    stages.push_back({mesh, settings.kib * 256, index == 0, index + 1 == count, durations});
  }
  NoTraining training;
  distx::pipeline::Pipeline pipeline(comm, schedule, std::span<const Stage>(stages), training);
  std::vector<double> steps;
  for (int round = 0; round <= settings.rounds; ++round) {
    distx::barrier(comm);
    const auto begin = clock::now();
    pipeline.run();
    double slowest = since(begin);
    distx::all_reduce(comm, slowest, distx::max);
    if (round > 0) steps.push_back(slowest);
  }
  const auto planned = itself.timeline(durations);
  const double ideal = length(planned);
  const auto run = pipeline.timeline();
  if (comm.rank() != 0) return;
  fmt::print("{:<17} planned {:7.1f} ms, measured {:7.1f} ms, ratio {:.3f}\n", itself.name(), 1e3 * ideal,
             1e3 * median(steps), median(steps) / ideal);
  if (settings.picture) fmt::print("{}\n{}\n", picture(planned, seconds), picture(run, seconds));
}

void run(int argc, char** argv, const Settings& settings) {
  auto connector = distx::connect(argc, argv);
  settings.backend.run(connector, [&](Any comm) {
    Any own = distx::groups(comm, {});  // this rank alone
    const Mesh mesh(own, {1});
    const int ranks = comm.size(), count = settings.micro_batches;
    if (comm.rank() == 0)
      fmt::print("{}, {} stages, {} micro-batches, {} KiB between stages\n", comm.backend(), ranks, count,
                 settings.kib);
    measure(comm, mesh, settings, distx::pipeline::gpipe(ranks, count));
    measure(comm, mesh, settings, distx::pipeline::one_forward_one_backward(ranks, count));
    if (count % ranks == 0) measure(comm, mesh, settings, distx::pipeline::interleaved(ranks, count, settings.chunks));
    if (count >= ranks) measure(comm, mesh, settings, distx::pipeline::zero_bubble(ranks, count));
  });
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times the steps of pipelines", "pipeline");
  Settings settings;
  settings.describe(app);
  return examples::run(app, argc, argv, [&] { run(argc, argv, settings); });
}
