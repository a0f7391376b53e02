// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A GPT of LibTorch's modules, trained on the characters of text files: fully sharded by --zero 3.
//   distx-run -n 2, mpirun -np 2 or torchrun --nproc-per-node 2 --no-python build/examples/train_torch_gpt --zero 3
#include <cstdio>
#include <exception>

#include <torch/torch.h>
#include <CLI/CLI.hpp>
#include <distx/mpi.hpp>
#include <distx/shm.hpp>
#include <distx/tcp.hpp>
#include <distx/torch.hpp>

#include "../data/corpus.hpp"

namespace nn = torch::nn;
template <class M>
using Layer = distx_torch::Sharded<M>;

constexpr std::int64_t width = 64, heads = 4, context_length = 64;

struct BlockImpl : nn::Module {
  at::Tensor forward(at::Tensor x) {
    const auto parts = attention->forward(norm1->forward(x)).view({x.size(0), x.size(1), 3, heads, width / heads});
    const auto qkv = parts.permute({2, 0, 3, 1, 4}).unbind();
    const auto mixed = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0.0, /*is_causal=*/true);
    x = x + project->forward(mixed.transpose(1, 2).reshape(x.sizes()));
    return x + down->forward(torch::gelu(up->forward(norm2->forward(x))));
  }
  nn::LayerNorm norm1 = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({width})));
  nn::Linear attention = register_module("attention", nn::Linear(width, 3 * width));
  nn::Linear project = register_module("project", nn::Linear(width, width));
  nn::LayerNorm norm2 = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({width})));
  nn::Linear up = register_module("up", nn::Linear(width, 4 * width));
  nn::Linear down = register_module("down", nn::Linear(4 * width, width));
};
TORCH_MODULE(Block);

struct Gpt : nn::Module {
  Gpt(std::int64_t vocabulary, int layers) {
    tokens = register_module("tokens", Layer<nn::Embedding>(vocabulary, width));
    positions = register_module("positions", Layer<nn::Embedding>(context_length, width));
    // Memory for the weights of a deferred layer is shards only.
    for (int i = 0; i < layers; ++i) blocks->push_back(Layer<Block>(distx_torch::deferred));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})));
    head = register_module("head", Layer<nn::Linear>(width, vocabulary));
  }
  at::Tensor forward(const at::Tensor& text) {
    const auto x = tokens->forward(text) + positions->forward(torch::arange(text.size(1)));
    return head->forward(norm->forward(blocks->forward(x)));
  }
  Layer<nn::Embedding> tokens = nullptr, positions = nullptr;
  nn::Sequential blocks = register_module("blocks", nn::Sequential());
  nn::LayerNorm norm = nullptr;
  Layer<nn::Linear> head = nullptr;
};

/// Returns the mean loss of guessing what follows each character.
at::Tensor loss_of(Gpt& gpt, const examples::TextBatch& batch) {
  const auto tensor = [](const auto& numbers) {
    return torch::tensor(std::vector<std::int64_t>(numbers.begin(), numbers.end()));
  };
  return nn::functional::cross_entropy(gpt.forward(tensor(batch.tokens).view({-1, context_length})).flatten(0, 1),
                                       tensor(batch.targets));
}

int main(int argc, char** argv) try {
  auto connector = distx::connect(argc, argv);
  int stage = 0, layers = 2, steps = 200;
  std::size_t batch = 8;
  std::vector<std::filesystem::path> text;
  CLI::App app("Trains a GPT of LibTorch's modules on text", "train_torch_gpt");
  app.add_option("--zero", stage, "stage of ZeRO")->check(CLI::Range(0, 3))->capture_default_str();
  app.add_option("--layers", layers, "transformer blocks")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--steps", steps, "training steps")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--batch", batch, "sequences per step and rank")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--text", text, "files to train on [default: the headers and pages of this project]");
  CLI11_PARSE(app, argc, argv);

  auto comm = distx::best_communicator(connector);
  const examples::Corpus corpus(examples::read_text(text.empty() ? examples::headers_and_pages(SOURCE_ROOT) : text));
  if (corpus.held_out().size() <= context_length)
    throw distx::DataError("the text is too short: give --text a longer one");
  torch::manual_seed(1);
  Gpt gpt(static_cast<std::int64_t>(corpus.vocabulary()), layers);
  distx_torch::DataParallel<distx::ZeRO<distx::Dynamic>> training(gpt, comm, distx::AdamW{},
                                                                  {.stage = stage, .clip_norm = 1});
  const distx::DistributedSampler sampler(corpus.sequences(context_length), comm, {.batch_size = batch, .seed = 1});
  const distx::DataLoader loader(
      sampler, [&](std::span<const std::size_t> numbers) { return corpus.batch(numbers, context_length); });
  for (int step = 0, epoch = 0; step < steps; ++epoch) {
    for (const auto& part : loader.epoch(epoch)) {
      const auto loss = loss_of(gpt, part);
      loss.backward();
      training.step({.learning_rate = 3e-3});
      auto mean = loss.item<double>();
      distx::all_reduce(comm, mean, distx::average);
      if (comm.rank() == 0) std::printf("step %d loss %.9g\n", step, mean);
      if (++step == steps) break;
    }
  }
  const torch::NoGradGuard no_grad;
  const double held_out = loss_of(gpt, examples::sequences(corpus.held_out(), {{0}}, context_length)).item<double>();
  if (comm.rank() == 0) std::printf("loss on text that was held out: %.9g\n", held_out);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
