// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// How much of the communication overlap hides on a link, and what it costs; benchmarks/slow_link.py makes the link.
// Computation is the same on every rank and in every mode: a device's, during which the core is free, or a core's.
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fmt/core.h>

#include <distx/distx.hpp>

#include "common/backend.hpp"
#include "common/run.hpp"
#include "timing/samples.hpp"
#include "timing/work.hpp"

namespace {

using Any = distx::AnyCommunicator<>;
using Training = distx::DataParallel<distx::ZeRO<distx::Dynamic>>;
using timing::clock;
using timing::median;
using timing::since;
using timing::Work;

struct Settings {
  examples::Backend backend;
  int zero = 0;
  int layers = 8;
  std::uint64_t layer_bytes = 1 << 20;
  double milliseconds = 10;
  bool device = false;
  int rounds = 9;

  Settings() { backend.name = "mpi"; }

  void describe(CLI::App& app) {
    const CLI::Range count(1, 1000000);
    backend.describe(app);
    app.add_option("--zero", zero, "stage of ZeRO: 0 to 2")->check(CLI::Range(0, 2))->capture_default_str();
    app.add_option("--layers", layers, "each of which is a bucket")->check(count)->capture_default_str();
    app.add_option("--layer-bytes", layer_bytes, "of a layer's gradient, such as 1MiB")
        ->transform(CLI::AsSizeValue(false))
        ->capture_default_str();
    app.add_option("--milliseconds", milliseconds, "of a layer's computation")->capture_default_str();
    app.add_flag("--device", device, "computes on a device, which leaves the core free");
    app.add_option("--rounds", rounds, "in each of which every mode makes a step, besides one to warm up")
        ->check(count)
        ->capture_default_str();
  }
};

/// One way to train.
struct Mode {
  std::string name;
  std::vector<distx::Parameter<float>> layers{};
  std::unique_ptr<Training> training{};
  std::vector<double> steps{};  ///< seconds
};

Mode make_mode(std::string name, Any& comm, const Settings& settings) {
  Mode mode{std::move(name)};
  for (int i = 0; i < settings.layers; ++i)
    mode.layers.emplace_back("layer" + std::to_string(i), settings.layer_bytes / sizeof(float));
  mode.training = std::make_unique<Training>(
      comm, mode.layers, distx::SGD{},
      distx::DataParallelOptions{
          .bucket_bytes = settings.layer_bytes, .overlap = mode.name == "overlap", .stage = settings.zero});
  return mode;
}

void measure(Any& comm, const Settings& settings) {
  auto self = distx::SelfConnector();
  std::vector<Mode> modes;
  Any serial(distx::SerialCommunicator{self});
  modes.push_back(make_mode("alone", serial, settings));
  modes.push_back(make_mode("blocking", comm, settings));
  modes.push_back(make_mode("overlap", comm, settings));

  Work work(1e-3 * settings.milliseconds);
  for (int round = 0; round <= settings.rounds; ++round)
    for (auto& mode : modes) {
      distx::barrier(comm);
      const auto begin = clock::now();
      for (auto layer = mode.layers.rbegin(); layer != mode.layers.rend(); ++layer) {
        mode.training->gradient(*layer)[0] = 1;
        if (settings.device)
          std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(settings.milliseconds));
        else
          work();
        mode.training->ready(*layer);
      }
      mode.training->step({.learning_rate = 1e-3});
      double slowest = since(begin);
      distx::all_reduce(comm, slowest, distx::max);
      if (round > 0) mode.steps.push_back(slowest);
    }
  if (comm.rank() != 0) return;

  // The shortest step: a link that is never idle after the first layer, or computation and then the last bucket. From
  // stage 1 on, half of the bytes are updated weights, which follow the computation.
  const double alone = median(modes[0].steps), blocking = median(modes[1].steps), overlap = median(modes[2].steps);
  const double link = blocking - alone, weights = settings.zero > 0 ? link / 2 : 0, gradients = link - weights;
  const double ideal = weights + std::max(alone + gradients / settings.layers,
                                          alone - 1e-3 * settings.milliseconds * (settings.layers - 1) + gradients);
  fmt::print(
      "{}, stage {}, {}: alone {:.1f} ms, blocking {:.1f}, overlap {:.1f} ({:.2f} of blocking), ideal {:.1f}; hidden "
      "{:.0f}%\n",
      comm.backend(), settings.zero, settings.device ? "free core" : "busy core", 1e3 * alone, 1e3 * blocking,
      1e3 * overlap, overlap / blocking, 1e3 * ideal, 100 * (blocking - overlap) / (blocking - ideal));
}

void run(int argc, char** argv, const Settings& settings) {
  auto connector = distx::connect(argc, argv);
  settings.backend.run(connector, [&](Any comm) { measure(comm, settings); });
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times the steps of a training with overlap, without, and without communication", "slow_link");
  Settings settings;
  settings.describe(app);
  return examples::run(app, argc, argv, [&] { run(argc, argv, settings); });
}
