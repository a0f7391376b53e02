// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The convolutional network of PyTorch's examples, trained on real digits in one process: train_mnist.cpp trains it on
// many.
//   build/examples/train_mnist_alone --digits build/data/digits.csv.gz
#include <cstdio>
#include <exception>

#include "digits.hpp"
#include "flags.hpp"

namespace nn = torch::nn;
template <class M>
using Layer = M;

struct Net : nn::Module {
  at::Tensor forward(at::Tensor x) {
    x = torch::relu(torch::max_pool2d(conv1->forward(x), 2));
    x = torch::relu(torch::max_pool2d(torch::feature_dropout(conv2->forward(x), 0.5, is_training()), 2));
    x = torch::dropout(torch::relu(fc1->forward(x.flatten(1))), 0.5, is_training());
    return torch::log_softmax(fc2->forward(x), 1);
  }
  Layer<nn::Conv2d> conv1 = register_module("conv1", Layer<nn::Conv2d>(nn::Conv2dOptions(1, 10, 5)));
  Layer<nn::Conv2d> conv2 = register_module("conv2", Layer<nn::Conv2d>(nn::Conv2dOptions(10, 20, 5)));
  Layer<nn::Linear> fc1 = register_module("fc1", Layer<nn::Linear>(320, 50));
  Layer<nn::Linear> fc2 = register_module("fc2", Layer<nn::Linear>(50, 10));
};

int main(int argc, char** argv) try {
  const int rank = 0, ranks = 1;
  const examples::TorchFlags flags(argc, argv);
  torch::manual_seed(1);
  const auto net = std::make_shared<Net>();
  const examples::DigitTensors digits(flags.digits, flags.type);
  net->to(flags.type);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.5));
  torch::manual_seed(100 + rank);  // for dropout
  for (int step = 0; step < flags.steps; ++step) {
    const auto [images, labels] = digits.batch(step, flags.batch, rank, ranks);
    net->zero_grad();
    const auto loss = torch::nll_loss(net->forward(images), labels);
    loss.backward();
    optimizer.step();
    if (rank == 0) std::printf("step %d loss %.17g\n", step, loss.item<double>());
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
