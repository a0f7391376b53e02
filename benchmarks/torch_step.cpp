// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The time of a training step of LibTorch modules by distx_torch::DataParallel, and without communication, on ranks of
// one thread each. torch_step.py runs it in turn with PyTorch's DistributedDataParallel on Gloo.
//   distx-run -n 2 build/benchmarks/torch_step ROUNDS [STEPS]   prints a line "model way milliseconds" per round
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <distx/shm.hpp>
#include <distx/tcp.hpp>
#include <distx/torch.hpp>

namespace nn = torch::nn;
template <class M>
using Plain = M;

namespace {

/// 784-1024-1024-10, 64 rows per rank.
template <template <class> class Layer>
struct MlpImpl : nn::Module {
  Layer<nn::Linear> a = register_module("a", Layer<nn::Linear>(784, 1024));
  Layer<nn::Linear> b = register_module("b", Layer<nn::Linear>(1024, 1024));
  Layer<nn::Linear> c = register_module("c", Layer<nn::Linear>(1024, 10));
  at::Tensor forward(const at::Tensor& x) { return c->forward(torch::relu(b->forward(torch::relu(a->forward(x))))); }
  static at::Tensor input() { return torch::rand({64, 784}) * 2 - 1; }
  static at::Tensor labels() { return torch::remainder(torch::arange(64) * 7, 10); }
};

struct BlockImpl : nn::Module {
  static constexpr std::int64_t width = 128, heads = 4;
  nn::LayerNorm norm1 = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({width})));
  nn::LayerNorm norm2 = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({width})));
  nn::Linear qkv = register_module("qkv", nn::Linear(width, 3 * width));
  nn::Linear proj = register_module("proj", nn::Linear(width, width));
  nn::Linear up = register_module("up", nn::Linear(width, 4 * width));
  nn::Linear down = register_module("down", nn::Linear(4 * width, width));
  at::Tensor forward(at::Tensor x) {
    const auto n = x.size(0), t = x.size(1);
    const auto all = qkv->forward(norm1->forward(x)).view({n, t, 3, heads, width / heads}).permute({2, 0, 3, 1, 4});
    const auto attended = at::scaled_dot_product_attention(all[0], all[1], all[2], {}, 0.0, true);
    x = x + proj->forward(attended.transpose(1, 2).reshape({n, t, width}));
    return x + down->forward(torch::gelu(up->forward(norm2->forward(x))));
  }
};
TORCH_MODULE(Block);

/// 4 blocks of width 128 over 64 tokens, a vocabulary of 256, 4 sequences per rank.
template <template <class> class Layer>
struct GptImpl : nn::Module {
  Layer<nn::Embedding> tokens = register_module("tokens", Layer<nn::Embedding>(256, 128));
  Layer<nn::Embedding> places = register_module("places", Layer<nn::Embedding>(64, 128));
  std::vector<Layer<Block>> blocks;
  Layer<nn::Linear> head = register_module("head", Layer<nn::Linear>(128, 256));
  GptImpl() {
    for (int i = 0; i < 4; ++i) blocks.push_back(register_module("block" + std::to_string(i), Layer<Block>()));
  }
  at::Tensor forward(const at::Tensor& ids) {
    auto x = tokens->forward(ids) + places->forward(torch::arange(64));
    for (auto& block : blocks) x = block->forward(x);
    return head->forward(x).flatten(0, 1);
  }
  static at::Tensor input() { return torch::randint(256, {4, 64}); }
  static at::Tensor labels() { return torch::randint(256, {256}); }
};

struct Way {
  std::string name;
  std::function<void()> step;
};

template <class Module, class Step>
std::function<void()> steps_of(std::shared_ptr<Module> module, Step step) {
  return [module, step, x = Module::input(), y = Module::labels()]() mutable {
    nn::functional::cross_entropy(module->forward(x), y).backward();
    step();
  };
}

template <template <template <class> class> class Model>
void add_ways(const std::string& model, distx::ShmCommunicator& comm, std::vector<Way>& ways) {
  {
    const auto module = std::make_shared<Model<Plain>>();
    const auto optimizer =
        std::make_shared<torch::optim::SGD>(module->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
    ways.push_back({model + " alone", steps_of(module, [optimizer] { optimizer->step(), optimizer->zero_grad(); })});
  }
  const auto add = [&](const std::string& name, const distx::DataParallelOptions& options) {
    const auto module = std::make_shared<Model<distx_torch::Sharded>>();
    const auto training = std::make_shared<distx_torch::DataParallel<distx::ZeRO<distx::Dynamic>>>(
        *module, comm, distx::SGD{.momentum = 0.9}, options);
    ways.push_back({model + " " + name, steps_of(module, [training] { training->step({.learning_rate = 0.01}); })});
  };
  for (const int stage : {0, 1, 2, 3}) add("stage" + std::to_string(stage), {.stage = stage});
  add("stage0-blocking", {.overlap = false, .stage = 0});
  add("stage3-gathered", {.stage = 3, .map_weights = false});
}

}  // namespace

int main(int argc, char** argv) {
  using Clock = std::chrono::steady_clock;
  auto connector = distx::connect(argc, argv);
  distx::ShmCommunicator comm(connector);
  const int rounds = argc > 1 ? std::stoi(argv[1]) : 5, steps = argc > 2 ? std::stoi(argv[2]) : 20;
  at::set_num_threads(1);
  std::vector<Way> ways;
  add_ways<MlpImpl>("mlp", comm, ways);
  add_ways<GptImpl>("gpt", comm, ways);
  for (int round = 0; round <= rounds; ++round)  // the first one only warms up
    for (const auto& way : ways) {
      distx::barrier(comm);
      const auto begin = Clock::now();
      for (int step = 0; step < steps; ++step) way.step();
      distx::barrier(comm);
      const std::chrono::duration<double, std::milli> time = Clock::now() - begin;
      if (round > 0 && comm.rank() == 0) std::printf("%s %.4f\n", way.name.c_str(), time.count() / steps);
    }
}
