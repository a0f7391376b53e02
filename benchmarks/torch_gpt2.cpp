// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The time of training steps of GPT-2 (124 million parameters), by LibTorch's modules and distx on GPUs: bfloat16 by
// autocast over float32 weights, and bfloat16 weights with float32 masters. peers/gpt2.py is the same in PyTorch.
//
//     build/benchmarks/torch_gpt2 [--batch 16] [--steps 20] [--rounds 3] [--stages 0,3]     one rank
//     tools/ranks --one-gpu 2 build/benchmarks/torch_gpt2 --batch 8          processes that share a GPU
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <distx/file.hpp>
#include <distx/nccl.hpp>
#include <distx/torch_cuda.hpp>

#include "timing/on_gpu.hpp"
#include "timing/samples.hpp"

namespace nn = torch::nn;
using distx_torch::Sharded;

namespace {

constexpr std::int64_t vocabulary = 50304, context_length = 1024, width = 768, heads = 12, layers = 12;

/// LibTorch's own adds the bias to an input of three dimensions by another kernel, Python's by the product's.
struct LinearImpl : nn::LinearImpl {
  using nn::LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight, bias); }
};
TORCH_MODULE(Linear);

struct BlockImpl : nn::Module {
  at::Tensor forward(at::Tensor x) {
    const auto parts = attention->forward(norm1->forward(x)).view({x.size(0), x.size(1), 3, heads, width / heads});
    const auto qkv = parts.permute({2, 0, 3, 1, 4}).unbind();
    const auto mixed = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0.0, /*is_causal=*/true);
    x = x + project->forward(mixed.transpose(1, 2).reshape(x.sizes()));
    return x + down->forward(at::gelu(up->forward(norm2->forward(x)), "tanh"));
  }
  nn::LayerNorm norm1 = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({width})));
  nn::LayerNorm norm2 = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({width})));
  Linear attention = register_module("attention", Linear(width, 3 * width));
  Linear project = register_module("project", Linear(width, width));
  Linear up = register_module("up", Linear(width, 4 * width));
  Linear down = register_module("down", Linear(4 * width, width));
};
TORCH_MODULE(Block);

/// The head has the embedding's weights, which are outside of Sharded layers, and so always whole.
struct Gpt2 : nn::Module {
  Gpt2() {
    for (int i = 0; i < layers; ++i) blocks->push_back(Sharded<Block>());
    const torch::NoGradGuard no_grad;
    for (auto& weight : parameters())
      if (weight.dim() > 1) weight.normal_(0, 0.02);
  }
  at::Tensor forward(const at::Tensor& text) {
    const auto x = tokens->forward(text) + positions->forward(torch::arange(text.size(1), text.options()));
    return at::linear(norm->forward(blocks->forward(x)), tokens->weight);
  }
  nn::Embedding tokens = register_module("tokens", nn::Embedding(vocabulary, width));
  nn::Embedding positions = register_module("positions", nn::Embedding(context_length, width));
  nn::Sequential blocks = register_module("blocks", nn::Sequential());
  nn::LayerNorm norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})));
};

struct Options {
  std::int64_t batch = 16;
  int steps = 20, rounds = 3;
  bool phases = false;
  std::vector<int> stages{0, 3};
};

template <class... Policies>
void time_steps(distx::NcclCommunicator& comm, const std::string& name, at::ScalarType type, int stage,
                const Options& options) {
  using Clock = std::chrono::steady_clock;
  torch::manual_seed(1);
  Gpt2 gpt;
  gpt.to(at::kCUDA, type);
  distx_torch::DataParallel<distx::ZeRO<distx::Dynamic>, distx::On<distx::Cuda>, Policies...> training(
      gpt, comm, distx::AdamW{}, {.stage = stage, .clip_norm = 1});
  const auto text =
      torch::randint(vocabulary, {options.batch, context_length + 1}, at::TensorOptions(at::kCUDA).dtype(at::kLong));
  at::autocast::set_autocast_dtype(at::kCUDA, at::kBFloat16);
  std::vector<double> times;
  at::Tensor loss;
  for (int round = 0; round <= options.rounds; ++round) {  // the first one only warms up
    torch::cuda::synchronize();
    distx::barrier(comm);
    const auto begin = Clock::now();
    std::vector<double> phases[3];
    for (int step = 0; step < options.steps; ++step) {
      auto last = Clock::now();
      const auto ends = [&](std::vector<double>& phase) {
        if (!options.phases) return;
        torch::cuda::synchronize();
        const auto now = Clock::now();
        phase.push_back(std::chrono::duration<double, std::milli>(now - std::exchange(last, now)).count());
      };
      at::autocast::set_autocast_enabled(at::kCUDA, type == at::kFloat);
      const auto logits = gpt.forward(text.narrow(1, 0, context_length)).flatten(0, 1);
      loss = nn::functional::cross_entropy(logits, text.narrow(1, 1, context_length).flatten());
      at::autocast::clear_cache();
      at::autocast::set_autocast_enabled(at::kCUDA, false);  // the backward pass inherits it
      ends(phases[0]);
      loss.backward();
      ends(phases[1]);
      training.step({.learning_rate = 3e-4});
      ends(phases[2]);
    }
    if (options.phases && comm.rank() == 0)
      std::printf("forward %.2f, backward %.2f, step %.2f ms\n", timing::median(phases[0]), timing::median(phases[1]),
                  timing::median(phases[2]));
    torch::cuda::synchronize();
    distx::barrier(comm);
    const std::chrono::duration<double, std::milli> time = Clock::now() - begin;
    if (round > 0) times.push_back(time.count() / options.steps);
  }
  const double milliseconds = timing::median(times);
  if (comm.rank() == 0)
    std::printf("%-9s stage %d %9.2f ms a step, %9.0f tokens/s a rank, loss %.4f, distx at most %.1f GiB\n",
                name.c_str(), stage, milliseconds,
                static_cast<double>(options.batch * context_length) * 1e3 / milliseconds, loss.item<double>(),
                static_cast<double>(training.memory().total.peak) / (1 << 30));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Times training steps of GPT-2 by LibTorch and distx on GPUs", "torch_gpt2");
  app.add_option("--batch", options.batch, "sequences per rank")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--steps", options.steps, "steps per round")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--rounds", options.rounds, "rounds")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--stages", options.stages, "stages of ZeRO")
      ->delimiter(',')
      ->check(CLI::Range(0, 3))
      ->capture_default_str();
  app.add_flag("--phases", options.phases, "wait after each part of a step, and print its time");
  CLI11_PARSE(app, argc, argv);
  return timing::on_gpu([&] {
    auto connector = distx::connect();
    distx::cuda::pick_device(connector, {.share = true});
    distx::NcclCommunicator comm(connector);
    for (const int stage : options.stages) {
      time_steps<>(comm, "autocast", at::kFloat, stage, options);
      time_steps<distx::Precision<distx::bfloat16>>(comm, "bfloat16", at::kBFloat16, stage, options);
    }
    return 0;
  });
}
