// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Times training steps of a mixture of experts. benchmarks/experts.py runs PyTorch's in turn.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <distx/distx.hpp>
#include <distx/parallel/layers/experts.hpp>
#include <distx/parallel/mesh_parallel.hpp>

#include "common/backend.hpp"
#include "common/run.hpp"
#include "timing/samples.hpp"

namespace {

using Any = distx::AnyCommunicator<>;
using timing::clock;
using timing::since;

struct Data {};
struct Experts {};
struct Model {};
using Mesh = distx::Mesh<Data, Experts, Model>;
using Split = distx::layers::TensorParallel<Mesh, Data, Model, false, distx::Host, void, Experts>;

struct Settings {
  examples::Backend backend;
  std::size_t experts = 8, per_token = 2, width = 256, inner = 256, tokens = 1024;
  int rounds = 9;

  Settings() { backend.name = "gloo"; }

  void describe(CLI::App& app) {
    const CLI::Range count(1, 1000000);
    backend.describe(app);
    app.add_option("--experts", experts, "of all ranks")->check(count)->capture_default_str();
    app.add_option("--per-token", per_token, "experts of each token")->check(count)->capture_default_str();
    app.add_option("--width", width, "of a token")->check(count)->capture_default_str();
    app.add_option("--inner", inner, "width inside an expert")->check(count)->capture_default_str();
    app.add_option("--tokens", tokens, "of each rank")->check(count)->capture_default_str();
    app.add_option("--rounds", rounds, "steps, besides one to warm up")->check(count)->capture_default_str();
  }
};

/// Numbers that look random and are the same on every rank.
struct Scattered {
  double scale;
  template <std::size_t Rank>
  double operator()(const std::array<std::size_t, Rank>& index) const {
    double at = 1;
    for (const auto i : index) at = at * 12.9898 + static_cast<double>(i) * 78.233;
    const double wave = 43758.5453 * std::sin(at);
    return scale * (wave - std::floor(wave) - 0.5);
  }
};

void measure(Any& comm, const Settings& settings) {
  const Mesh mesh(comm, {1, comm.size(), 1});
  const auto routers = std::make_shared<distx::layers::RouterSettings>();
  routers->experts_per_token = settings.per_token;
  routers->on_routed = [](const distx::layers::Routed&) {};  // so that the losses are computed, as PyTorch's are
  const distx::layers::ParallelExperts<float, Split> layer("experts", mesh, settings.width, settings.inner,
                                                           settings.experts, Scattered{0.2}, Scattered{0.1},
                                                           Scattered{0.1}, routers);
  distx::TensorParameterList<> parameters;
  layer.for_each_parameter([&](const auto& parameter) { parameters.add(parameter); });
  distx::MeshParallel<Data, distx::ZeRO<0>> training(mesh, parameters, distx::SGD{});
  const distx::Extents<3> extents{static_cast<std::size_t>(comm.size()), settings.tokens, settings.width};
  const auto x = distx::generate<float, Split::tokens>(mesh, extents, Scattered{2});
  const auto slope = distx::generate<float, Split::tokens>(mesh, extents, Scattered{1e-3});
  std::vector<double> steps;
  for (int round = 0; round <= settings.rounds; ++round) {
    distx::barrier(comm);
    const auto begin = clock::now();
    auto [output, kept] = layer.forward(x, training);
    static_cast<void>(layer.backward(std::move(kept), slope, training));
    training.step({.learning_rate = 1e-3});
    double slowest = since(begin);
    distx::all_reduce(comm, slowest, distx::max);
    if (round > 0) steps.push_back(slowest);
  }
  if (comm.rank() == 0)
    fmt::print("{} ranks, {} experts, {} tokens of {} on each, inner width {}: measured {:.3f} ms\n", comm.size(),
               settings.experts, settings.tokens, settings.width, settings.inner, 1e3 * timing::median(steps));
}

void run(int argc, char** argv, const Settings& settings) {
  auto connector = distx::connect(argc, argv);
  settings.backend.run(connector, [&](Any comm) { measure(comm, settings); });
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times training steps of a mixture of experts", "experts");
  Settings settings;
  settings.describe(app);
  return examples::run(app, argc, argv, [&] { run(argc, argv, settings); });
}
