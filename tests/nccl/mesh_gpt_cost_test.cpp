// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Launches, products, host waits and allocations of a GPT's step, counted by the stand-in for CUDA.
#include "../../examples/models/mesh_gpt.hpp"

#include <doctest/doctest.h>

#include <distx/cuda_blas.hpp>
#include <distx/parallel/mesh_parallel.hpp>

#include <array>

#include "standin/standin.hpp"
#include "tensor_meshes.hpp"

namespace {

using distx::Cuda;
using gpu_meshes::Data;
using gpu_meshes::Mesh;
using gpu_meshes::Model;

struct Cost {
  std::size_t launches = standin::calls("cudaLaunchKernelEx");
  std::size_t products = standin::calls("cublasGemmEx");
  std::size_t waits = standin::host_waits();
  std::size_t blocking_allocations = standin::calls("cudaMalloc") + standin::calls("cudaMallocHost");
  std::size_t collectives =
      standin::calls("ncclAllReduce") + standin::calls("ncclReduceScatter") + standin::calls("ncclAllGather");

  friend Cost operator-(Cost a, const Cost& b) {
    a.launches -= b.launches, a.products -= b.products, a.waits -= b.waits;
    a.blocking_allocations -= b.blocking_allocations, a.collectives -= b.collectives;
    return a;
  }
};

/// Returns the cost of the third step on one rank.
Cost cost_of_step(int stage, std::size_t layers) {
  const examples::GptShape shape{.vocabulary = 11, .context = 4, .width = 8, .layers = layers, .heads = 2};
  const std::vector<examples::Token> tokens{1, 2, 3, 4};
  Cost cost;
  gpu_meshes::on_mesh({1, 1}, [&](gpu_meshes::Rank& rank) {
    examples::MeshGpt<float, distx::layers::TensorParallel<Mesh, Data, Model, false, Cuda>> model(rank.gpus, shape, 1);
    distx::TensorParameterList<Cuda> list;
    model.for_each_parameter([&](const auto& parameter) { list.add(parameter); });
    distx::MeshParallel<Data, distx::ZeRO<distx::Dynamic>, distx::On<Cuda>> training(
        rank.gpus, list, distx::AdamW{}, {.bucket_bytes = distx::unlimited, .stage = stage, .clip_norm = 1});
    for (int step = 0; step < 3; ++step) {
      rank.stream.synchronize();
      const Cost before;
      auto [loss, kept] = model.forward(tokens, tokens, 4, training);
      model.backward(std::move(kept), training);
      training.step({.learning_rate = 0.1});
      cost = Cost() - before;
    }
    rank.stream.synchronize();
  });
  return cost;
}

}  // namespace

TEST_CASE("a GPT's captured step is one launch of a graph, and never blocks the host") {
  const examples::GptShape shape{.vocabulary = 11, .context = 4, .width = 8, .layers = 2, .heads = 2};
  gpu_meshes::on_mesh({1, 1}, [&](gpu_meshes::Rank& rank) {
    const examples::MeshGpt<float, distx::layers::TensorParallel<Mesh, Data, Model, false, Cuda>> model(rank.gpus,
                                                                                                        shape, 1);
    distx::TensorParameterList<Cuda> list;
    model.for_each_parameter([&](const auto& parameter) { list.add(parameter); });
    distx::MeshParallel<Data, distx::ZeRO<2>, distx::On<Cuda>> training(rank.gpus, list, distx::AdamW{},
                                                                        {.clip_norm = 1});
    const auto ids = model.of_tokens(std::vector<examples::Token>{1, 2, 3, 4}, 4);
    const auto step = [&] {
      auto [losses, kept] = model.losses(ids.clone(), ids.clone(), training);
      model.backward(std::move(kept), training);
      training.step({.learning_rate = 0.1});
    };
    step();
    training.capture(step);
    training.replay({.learning_rate = 0.1});
    rank.stream.synchronize();
    const Cost before;
    const auto graphs = standin::calls("cudaGraphLaunch"), copies = standin::calls("cudaMemcpyAsync");
    training.replay({.learning_rate = 0.1});
    const Cost cost = Cost() - before;
    CHECK(standin::calls("cudaGraphLaunch") == graphs + 1);
    CHECK(standin::calls("cudaMemcpyAsync") == copies + 1);  // of the optimizer's coefficients
    CHECK(cost.launches + cost.products + cost.blocking_allocations + cost.collectives == 0);
    CHECK(cost.waits == 0);
    rank.stream.synchronize();
  });
}

TEST_CASE(
    "a GPT's step on a GPU launches 40 kernels and 12 products a block, and blocks the host for tokens, targets and "
    "the loss only") {
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    const Cost one = cost_of_step(stage, 1), two = cost_of_step(stage, 2), three = cost_of_step(stage, 3);
    const Cost block = two - one, next = three - two;
    CHECK(next.launches == block.launches);
    // 10 forward, 18 backward, and one that adds each of 12 gradients; at stage 3 six more buckets are updated.
    CHECK(block.launches == (stage < 3 ? 40 : 46));
    CHECK(block.products == 12);  // four layers, forward, and backward for inputs and weights
    CHECK(one.waits == 4);        // the loss is copied to memory that is not page-locked, which waits by itself
    CHECK(three.waits == 4);
    CHECK(three.blocking_allocations == 0);
    CHECK(three.collectives == 0);
  }
}
