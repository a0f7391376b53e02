// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <torch/torch.h>

#include <distx/torch.hpp>

#include <memory>
#include <mutex>
#include <vector>

// Modules of LibTorch that tests train, and their batches.
namespace torch_models {

namespace nn = torch::nn;
using distx_torch::Sharded;

/// A module whose initial values depend on `seed` alone: LibTorch's generator is one for all threads.
template <class M>
auto made(int seed, auto&&... arguments) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  torch::manual_seed(static_cast<std::uint64_t>(seed));
  return std::make_shared<M>(arguments...);
}

/// Multiplies by a weight of another layer.
struct TiedImpl : nn::Module {
  explicit TiedImpl(const at::Tensor& of) : weight(register_parameter("weight", of)) {}
  at::Tensor forward(const at::Tensor& x) { return nn::functional::linear(x, weight); }
  at::Tensor weight;
};
TORCH_MODULE(Tied);

/// Layers that are Sharded, one that is not, one that is used twice, a weight of two layers, and running statistics.
struct Net : nn::Module {
  Net() {
    in = register_module("in", Sharded<nn::Linear>(8, 16));
    norm = register_module("norm", nn::BatchNorm1d(16));
    twice = register_module("twice", Sharded<nn::Linear>(16, 16));
    tied = register_module("tied", Sharded<Tied>((*twice)->weight));
    out = register_module("out", nn::Linear(16, 3));
  }
  at::Tensor forward(at::Tensor x) {
    x = norm->forward(in->forward(x));
    x = twice->forward(torch::tanh(twice->forward(x).relu_()));
    return out->forward(tied->forward(torch::tanh(x)));
  }
  Sharded<nn::Linear> in{nullptr}, twice{nullptr};
  Sharded<Tied> tied{nullptr};
  nn::BatchNorm1d norm{nullptr};
  nn::Linear out{nullptr};
};

/// Rows of a batch that all ranks share, and of this rank's part of it.
struct Batch {
  at::Tensor x, y;
  Batch(int step, at::ScalarType type = at::kFloat, at::Device device = at::kCPU) {
    const auto numbers = torch::arange(96, at::kDouble);
    x = torch::sin(numbers * (step + 1)).view({12, 8}).to(device, type);
    y = torch::remainder(torch::arange(12) * (step + 3), 3).to(device);
  }
  [[nodiscard]] Batch part(int rank, int ranks) const {
    Batch share(*this);
    const std::int64_t rows = x.size(0) / ranks;
    share.x = x.narrow(0, rank * rows, rows);
    share.y = y.narrow(0, rank * rows, rows);
    return share;
  }
};

inline at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& y) {
  return nn::functional::cross_entropy(logits, y);
}

/// A module of two layers without statistics, so that parts of a batch add up to it.
struct Plain : nn::Module {
  explicit Plain(bool bias = true) {
    a = register_module("a", Sharded<nn::Linear>(nn::LinearOptions(8, 32).bias(bias)));
    b = register_module("b", Sharded<nn::Linear>(nn::LinearOptions(32, 3).bias(bias)));
  }
  at::Tensor forward(const at::Tensor& x) { return b->forward(torch::gelu(a->forward(x))); }
  Sharded<nn::Linear> a{nullptr}, b{nullptr};
};

/// The same without distx, on the whole batch.
inline std::vector<double> train_alone(Plain& module, int steps, at::ScalarType type) {
  torch::optim::SGD optimizer(module.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    const Batch batch(step, type);
    const auto loss = loss_of(module.forward(batch.x), batch.y);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

}  // namespace torch_models
