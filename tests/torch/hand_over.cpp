// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Trains a module at stage 3, saves it, loads the checkpoint into an unwrapped module at stage 0, and writes the
// weights into one file. hand_over.py loads that file into Python's module.
//   hand_over FOLDER   prints what both C++ modules compute for the same input
#include <torch/torch.h>

#include <cstdio>
#include <filesystem>

#include <distx/checkpoint.hpp>
#include <distx/threads.hpp>
#include <distx/torch.hpp>

namespace nn = torch::nn;

template <template <class> class Layer>
struct Net : nn::Module {
  Layer<nn::Conv2d> conv = register_module("conv", Layer<nn::Conv2d>(nn::Conv2dOptions(1, 4, 3)));
  nn::BatchNorm2d norm = register_module("norm", nn::BatchNorm2d(4));
  Layer<nn::Linear> out = register_module("out", Layer<nn::Linear>(4 * 36, 3));
  at::Tensor forward(const at::Tensor& x) {
    return out->forward(torch::relu(norm->forward(conv->forward(x))).flatten(1));
  }
};
template <class M>
using Plain = M;

at::Tensor images(int step) {
  return torch::sin(torch::arange(512, at::kFloat) * (static_cast<float>(step) + 1)).view({8, 1, 8, 8});
}

template <class Module>
void print(const char* name, Module& module) {
  const at::NoGradGuard no_grad;
  module.eval();
  std::printf("%s", name);
  const at::Tensor output = module.forward(images(9)).flatten();
  for (std::int64_t i = 0; i < output.numel(); ++i)
    std::printf(" %.9g", static_cast<double>(output[i].template item<float>()));
  std::printf("\n");
}

int main(int, char** argv) {
  const std::filesystem::path folder = argv[1];
  at::set_num_threads(1);
  distx::spawn(distx::threads(2), [&](distx::ThreadConnector& connector) {
    distx::ThreadCommunicator comm(connector);
    const auto module = std::make_shared<Net<distx_torch::Sharded>>();
    distx_torch::DataParallel<distx::ZeRO<3>> training(*module, comm, distx::AdamW{});
    for (int step = 0; step < 5; ++step) {
      const auto loss =
          nn::functional::cross_entropy(module->forward(images(step + comm.rank())), torch::arange(8) % 3);
      loss.backward();
      training.step({.learning_rate = 0.01});
    }
    distx::checkpoint::save(folder / "checkpoints", training, {.step = 5});
    training.release();
    if (comm.rank() == 0) print("trained", *module);
  });
  const auto newest = distx::checkpoint::latest(folder / "checkpoints");
  distx::spawn(distx::threads(1), [&](distx::ThreadConnector& connector) {
    distx::ThreadCommunicator comm(connector);
    const auto module = std::make_shared<Net<Plain>>();
    distx_torch::DataParallel<distx::ZeRO<0>> training(*module, comm, distx::AdamW{});
    distx::checkpoint::load(*newest, training);
    print("loaded", *module);
  });
  distx::checkpoint::consolidate(*newest, folder / "model.safetensors");
}
