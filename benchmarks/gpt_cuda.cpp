// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The time of a training step of GPT-2 124M on GPUs, by the layers of parallel/layers/: forward, backward, reduction,
// clipping and AdamW.
//
//     build/benchmarks/gpt_cuda --tf32                                     one rank
//     tools/ranks --one-gpu 2 build/benchmarks/gpt_cuda --tf32 --zero 2    processes that share a GPU
#include <cstdio>
#include <optional>
#include <vector>

#include <CLI/CLI.hpp>
#include <distx/cuda_blas.hpp>
#include <distx/distx.hpp>
#include <distx/file.hpp>
#include <distx/nccl.hpp>
#include <distx/parallel/mesh_parallel.hpp>

#include "models/mesh_gpt.hpp"
#include "timing/on_gpu.hpp"
#include "timing/samples.hpp"

namespace {

using distx::Cuda;

struct Data;
struct Model;
using Mesh = distx::Mesh<Data, Model>;

struct Settings {
  examples::GptShape shape{.vocabulary = 50257, .context = 1024, .width = 768, .layers = 12, .heads = 12};
  std::size_t batch = 16;
  int steps = 10, stage = 0;
  bool tf32 = false, recompute = false;
};

template <class Weight, bool Recompute, class... Policies>
void measure(const char* what, distx::NcclCommunicator& comm, const Settings& settings) {
  const distx::CudaStream stream;
  const Mesh mesh(comm, {comm.size(), 1}, stream);
  using Split = distx::layers::TensorParallel<Mesh, Data, Model, false, Cuda>;
  examples::MeshGpt<Weight, Split, Recompute> model(mesh, settings.shape, 1);
  distx::TensorParameterList<Cuda> parameters;
  model.for_each_parameter([&](const auto& parameter) { parameters.add(parameter); });
  distx::MeshParallel<Data, distx::ZeRO<distx::Dynamic>, distx::On<Cuda>, Policies...> training(
      mesh, parameters, distx::AdamW{}, {.stage = settings.stage, .clip_norm = 1});
  const std::size_t length = settings.shape.context, count = settings.batch * length;
  std::vector<examples::Token> tokens(count + 1);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<examples::Token>((i * i + 7 * i) % settings.shape.vocabulary);
  std::vector<double> seconds;
  double loss = 0;
  for (int step = 0; step < settings.steps + 3; ++step) {
    stream.synchronize();
    distx::barrier(comm);
    const auto begin = timing::clock::now();
    auto [mean, kept] = model.forward(std::span(tokens).first(count), std::span(tokens).subspan(1), length, training);
    model.backward(std::move(kept), training);
    training.step({.learning_rate = 1e-4});
    stream.synchronize();
    loss = static_cast<double>(mean);
    if (step >= 3) seconds.push_back(timing::since(begin));  // earlier ones warm up
  }
  const double median = timing::median(seconds);
  if (comm.rank() == 0)
    std::printf(
        "%-28s stage %d, %zu x %zu tokens a rank: %9.2f ms, %9.0f tokens a second in all, peak %.2f GB of "
        "activations, loss %.3f\n",
        what, settings.stage, settings.batch, length, 1e3 * median, static_cast<double>(count) * comm.size() / median,
        1e-9 * static_cast<double>(training.memory().activations.peak), loss);
  std::fflush(stdout);
}

int run(const Settings& settings) {
  distx::AnyConnector world = distx::connect();
  distx::cuda::pick_device(world, {.share = true});
  distx::NcclCommunicator comm(world);
  std::optional<distx::cuda::AllowTF32> tf32;
  if (settings.tf32) tf32.emplace();
  using distx::bfloat16;
  if (settings.recompute) {
    measure<float, true>("float32, recomputed", comm, settings);
    measure<bfloat16, true, distx::Precision<bfloat16>>("bfloat16 weights, recomputed", comm, settings);
  } else {
    measure<float, false>("float32", comm, settings);
    measure<bfloat16, false, distx::Precision<bfloat16>>("bfloat16 weights", comm, settings);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures training steps of GPT-2 124M on GPUs", "gpt_cuda");
  Settings settings;
  app.add_option("--batch", settings.batch, "sequences of each rank")->capture_default_str();
  app.add_option("--steps", settings.steps, "measured steps")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--zero", settings.stage, "stage")->check(CLI::Range(0, 3))->capture_default_str();
  app.add_option("--layers", settings.shape.layers, "transformer blocks")->capture_default_str();
  app.add_option("--width", settings.shape.width, "a multiple of the 12 heads")->capture_default_str();
  app.add_option("--vocabulary", settings.shape.vocabulary, "distinct tokens")->capture_default_str();
  app.add_option("--context", settings.shape.context, "tokens of a sequence")->capture_default_str();
  app.add_flag("--tf32", settings.tf32, "compute products by tensor cores, from 10 bits of each fraction");
  app.add_flag("--recompute", settings.recompute, "blocks keep only their inputs");
  CLI11_PARSE(app, argc, argv);
  return timing::on_gpu([&] { return run(settings); });
}
