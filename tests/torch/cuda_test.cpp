// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Modules of LibTorch that are trained on GPUs.
#include <c10/cuda/CUDAGuard.h>
#include <torch/torch.h>
#undef CHECK  // LibTorch's logging has one as well
#include <doctest/doctest.h>

#include <distx/checkpoint.hpp>
#include <distx/torch_cuda.hpp>

#include <filesystem>

#include "../nccl/gpu_ranks.hpp"
#include "models.hpp"

namespace {

using namespace torch_models;
using distx::Cuda;
using distx::NcclCommunicator;
template <class... Policies>
using Training = distx_torch::DataParallel<distx::ZeRO<distx::Dynamic>, distx::On<Cuda>, Policies...>;

constexpr int stages[] = {0, 1, 2, 3};

/// Calls f(comm) on the ranks that there are.
template <class F>
void on_gpus(F&& f) {
  gpu_ranks::on_same_gpus(gpu_ranks::world().size(), distx::NcclRounding::once, f);
}
Batch part_of(int step, const NcclCommunicator& comm, at::ScalarType type = at::kFloat) {
  return Batch(step, type, at::kCUDA).part(comm.rank(), comm.size());
}
/// Returns the mean of all ranks.
double mean_of(NcclCommunicator& comm, const at::Tensor& loss) {
  auto value = loss.detach().to(at::kDouble).clone();
  distx::all_reduce(comm, distx_torch::span_of<double, Cuda>(value), distx::average);
  return value.item<double>();
}
std::vector<at::Tensor> weights_of(const nn::Module& module) {
  std::vector<at::Tensor> weights;
  for (const auto& weight : module.parameters()) weights.push_back(weight.detach().cpu().clone());
  return weights;
}
bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  bool same = a.size() == b.size();
  for (std::size_t i = 0; same && i < a.size(); ++i) same = a[i].equal(b[i]);
  return same;
}

TEST_CASE("LibTorch on GPUs: collectives take a tensor's memory, and tensors are made over distx's") {
  on_gpus([](NcclCommunicator& comm) {
    const auto tensor = torch::full({2, 3}, comm.rank() + 1, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
    distx::all_reduce(comm, distx_torch::span_of<distx::bfloat16, Cuda>(tensor), distx::sum);
    CHECK(tensor.cpu()
              .to(at::kFloat)
              .equal(torch::full({2, 3}, static_cast<float>(comm.size() * (comm.size() + 1) / 2))));
    CHECK_THROWS_AS(static_cast<void>(distx_torch::span_of(tensor)), distx::InvalidArgument);
    CHECK_THROWS_AS(static_cast<void>(distx_torch::span_of<Cuda>(torch::ones(2))), distx::InvalidArgument);
    const distx::Buffer<float, Cuda> buffer(6);
    const auto over = distx_torch::tensor_over(buffer.span(), at::IntArrayRef({3, 2}));
    CHECK(over.is_cuda());
    CHECK(over.add_(2).sum().item<float>() == 12);
  });
}

/// Makes the steps `from` to `to`.
void train(auto& module, auto& training, const NcclCommunicator& comm, int from, int to) {
  for (int step = from; step < to; ++step) {
    const auto batch = part_of(step, comm);
    loss_of(module.forward(batch.x), batch.y).backward();
    training.step({.learning_rate = 0.01});
  }
}

TEST_CASE("LibTorch on GPUs: a module of the host trains to the same bits at every stage, on any stream") {
  on_gpus([](NcclCommunicator& comm) {
    std::vector<at::Tensor> expected;
    for (const int stage : stages)
      for (const bool on_side : {false, true}) {
        CAPTURE(stage);
        CAPTURE(on_side);
        std::optional<c10::cuda::CUDAStreamGuard> side;
        if (on_side) side.emplace(c10::cuda::getStreamFromPool());
        const auto module = made<Net>(comm.rank() + 1);
        Training<> training(*module, comm, distx::AdamW{}, {.stage = stage, .clip_norm = 0.5});
        CHECK(module->out->weight.is_cuda());
        CHECK(module->norm->running_mean.is_cuda());
        train(*module, training, comm, 0, 5);
        training.release();
        auto weights = weights_of(*module);
        weights.push_back(module->norm->running_mean.cpu());
        if (expected.empty()) expected = weights;
        CHECK(same_bits(weights, expected));
      }
  });
}

TEST_CASE("LibTorch on GPUs: losses are those of one process on the host") {
  std::vector<double> expected;
  {
    const auto module = made<Plain>(3);
    module->to(at::kDouble);
    expected = train_alone(*module, 8, at::kDouble);
  }
  on_gpus([&](NcclCommunicator& comm) {
    for (const int stage : {0, 3, 4}) {  // 4: LibTorch's optimizer, at stage 0
      const auto module = made<Plain>(3);
      module->to(at::kDouble);
      std::vector<double> losses;
      Training<> training(*module, comm, distx::SGD{.momentum = 0.9}, {.stage = stage % 4});
      torch::optim::SGD optimizer(module->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
      for (int step = 0; step < 8; ++step) {
        const auto batch = part_of(step, comm, at::kDouble);
        const auto loss = loss_of(module->forward(batch.x), batch.y);
        loss.backward();
        if (stage == 4)
          training.step(optimizer);
        else
          training.step({.learning_rate = 0.05});
        losses.push_back(mean_of(comm, loss));
      }
      for (std::size_t step = 0; step < losses.size(); ++step) {
        CAPTURE(stage);
        CAPTURE(step);
        CHECK(losses[step] == doctest::Approx(expected[step]).epsilon(1e-10));
      }
    }
  });
}

TEST_CASE("LibTorch on GPUs: bfloat16 weights with float32 masters, micro-batches and clipping at every stage") {
  on_gpus([](NcclCommunicator& comm) {
    std::vector<at::Tensor> expected;
    for (const int stage : stages) {
      const auto module = made<Plain>(5);
      module->to(at::kCUDA, at::kBFloat16);
      Training<distx::Precision<distx::bfloat16>, distx::Accumulate<distx::Sharded>> training(
          *module, comm, distx::AdamW{}, {.stage = stage, .clip_norm = 0.5});
      for (int step = 0; step < 5; ++step) {
        for (const std::size_t part : {0u, 1u}) {
          const auto micro = training.micro_batch({part, 2});
          const auto batch = part_of(2 * step + static_cast<int>(part), comm, at::kBFloat16);
          loss_of(module->forward(batch.x).to(at::kFloat), batch.y).backward();
        }
        training.step({.learning_rate = 0.01});
      }
      training.release();
      const auto weights = weights_of(*module);
      if (expected.empty()) expected = weights;
      CAPTURE(stage);
      CHECK(same_bits(weights, expected));
    }
  });
}

struct DropsImpl : nn::Module {
  nn::Linear a = register_module("a", nn::Linear(8, 64)), b = register_module("b", nn::Linear(64, 8));
  at::Tensor forward(const at::Tensor& x) {
    return x + torch::dropout(b->forward(torch::gelu(a->forward(x))), 0.5, true);
  }
};
TORCH_MODULE(Drops);
template <class Layer>
struct Stack : nn::Module {
  template <class... First>
  explicit Stack(const First&... first) {
    for (int i = 0; i < 3; ++i) layers->push_back(Layer(first...));
  }
  at::Tensor forward(const at::Tensor& x) { return head->forward(layers->forward(x)); }
  nn::Sequential layers = register_module("layers", nn::Sequential());
  nn::Linear head = register_module("head", nn::Linear(8, 3));
};

TEST_CASE("LibTorch on GPUs: recomputed, deferred and Sharded layers give the bits of plain ones, with dropout") {
  on_gpus([](NcclCommunicator& comm) {
    std::vector<at::Tensor> expected;
    const auto check = [&](auto module, int stage) {
      Training<> training(*module, comm, distx::AdamW{}, {.stage = stage});
      torch::cuda::manual_seed(static_cast<std::uint64_t>(comm.rank()) + 7);
      train(*module, training, comm, 0, 3);
      training.release();
      const auto weights = weights_of(*module);
      if (expected.empty()) expected = weights;
      CAPTURE(stage);
      CHECK(same_bits(weights, expected));
    };
    check(made<Stack<Drops>>(2), 0);
    check(made<Stack<Sharded<Drops>>>(2), 3);
    check(made<Stack<distx_torch::Recomputed<Sharded<Drops>>>>(2), 3);
    check(made<Stack<Sharded<Drops>>>(2, distx_torch::deferred), 3);
  });
}

TEST_CASE("LibTorch on GPUs: a checkpoint of one stage is continued by another, with the same bits") {
  on_gpus([](NcclCommunicator& comm) {
    const auto folder = std::filesystem::temp_directory_path() / ("distx-torch-cuda-" + std::to_string(comm.size()));
    if (comm.rank() == 0) std::filesystem::remove_all(folder);
    distx::barrier(comm);
    std::vector<at::Tensor> expected;
    {
      const auto module = made<Net>(1);
      Training<> training(*module, comm, distx::AdamW{}, {.stage = 3});
      train(*module, training, comm, 0, 3);
      distx::checkpoint::save(folder, training, {.step = 3});
      train(*module, training, comm, 3, 5);
      training.release();
      expected = weights_of(*module);
    }
    for (const int stage : stages) {
      const auto module = made<Net>(2);
      Training<> training(*module, comm, distx::AdamW{}, {.stage = stage});
      CHECK(distx::checkpoint::load(*distx::checkpoint::latest(folder), training).step == 3);
      train(*module, training, comm, 3, 5);
      training.release();
      CAPTURE(stage);
      CHECK(same_bits(weights_of(*module), expected));
    }
    distx::barrier(comm);
    if (comm.rank() == 0) std::filesystem::remove_all(folder);
  });
}

TEST_CASE("LibTorch on GPUs: at stage 3 a layer has whole weights in its passes only") {
  on_gpus([](NcclCommunicator& comm) {
    // 16 layers of 1024 x 1024 without biases in float32: 4 MiB each.
    struct Deep : nn::Module {
      Deep() {
        for (int i = 0; i < 16; ++i)
          layers->push_back(Sharded<nn::Linear>(distx_torch::deferred, nn::LinearOptions(1024, 1024).bias(false)));
      }
      nn::Sequential layers = register_module("layers", nn::Sequential());
    };
    const auto module = made<Deep>(1);
    Training<> training(*module, comm, distx::SGD{}, {.bucket_bytes = 0, .stage = 3});
    for (int step = 0; step < 3; ++step) {
      module->layers->forward(torch::ones({4, 1024}, at::kCUDA)).square().mean().backward();
      training.step({.learning_rate = 0.01});
    }
    // Shards of weights, gradients and momentum, and 5 layers: weights that are gathered, and gradients.
    constexpr std::size_t layer = std::size_t{4} << 20;
    const std::size_t shards = 3 * 16 * layer / static_cast<std::size_t>(comm.size());
    CHECK(training.memory().total.peak <= shards + (comm.size() > 1 ? 5 : 1) * layer);
  });
}

}  // namespace
