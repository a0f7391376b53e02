// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A GPT on GPUs, whose layers are those of the host with another memory space: it learns with the host's losses.
#include "../examples/counting_text.hpp"

#include <doctest/doctest.h>

#include <distx/cuda_blas.hpp>
#include <distx/parallel/mesh_parallel.hpp>

#include "tensor_meshes.hpp"

namespace {

using distx::Cuda;
using distx::Host;
using gpu_meshes::Data;
using gpu_meshes::Mesh;
using gpu_meshes::Model;
using gpu_meshes::on_mesh;
using gpu_meshes::Rank;

// 2 divides neither the vocabulary nor the sequences' length.
const examples::GptShape shape{.vocabulary = 11, .context = 7, .width = 16, .layers = 2, .heads = 4};
constexpr int sequences = 4, steps = 6;

/// Returns this rank's losses.
template <class Space, class Weight, int Stage, bool SequenceParallel, bool Recompute, class... Policies>
std::vector<double> losses_in(const Mesh& mesh) {
  using Split = distx::layers::TensorParallel<Mesh, Data, Model, SequenceParallel, Space>;
  examples::MeshGpt<Weight, Split, Recompute> model(mesh, shape, 1);
  distx::TensorParameterList<Space> list;
  model.for_each_parameter([&](const auto& parameter) { list.add(parameter); });
  distx::MeshParallel<Data, distx::ZeRO<Stage>, distx::On<Space>, Policies...> training(mesh, list, distx::AdamW{},
                                                                                        {.clip_norm = 0.5});
  const int count = sequences / mesh.template size<Data>(), first = mesh.template coordinate<Data>() * count;
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    auto [loss, kept] =
        model.forward(test::counting_text(shape.context, step, first, count, 0),
                      test::counting_text(shape.context, step, first, count, 1), shape.context, training);
    model.backward(std::move(kept), training);
    training.step({.learning_rate = 0.02});
    losses.push_back(static_cast<double>(loss));
  }
  return losses;
}

template <class Weight, int Stage, bool SequenceParallel = false, bool Recompute = false, class... Policies>
void compare(std::pair<int, int> mesh_shape, double bound) {
  on_mesh(mesh_shape, [&](Rank& rank) {
    INFO(mesh_shape.first, " x ", mesh_shape.second, ", stage ", Stage);
    const auto gpu = losses_in<Cuda, Weight, Stage, SequenceParallel, Recompute, Policies...>(rank.gpus);
    const auto host = losses_in<Host, Weight, Stage, SequenceParallel, Recompute, Policies...>(rank.host);
    CHECK(gpu.back() < 0.95 * gpu.front());
    for (std::size_t i = 0; i < host.size(); ++i) CHECK(std::abs(gpu[i] - host[i]) <= bound * host[i]);
  });
}

}  // namespace

TEST_CASE("a GPT on GPUs learns with the host's losses at every stage, whole or split") {
  compare<float, 3>({1, 1}, 1e-4);
  for (const auto& mesh : {std::pair{2, 1}, {1, 2}}) {
    compare<float, 0>(mesh, 1e-4);
    compare<float, 1>(mesh, 1e-4);
    compare<float, 2>(mesh, 1e-4);
    compare<float, 3>(mesh, 1e-4);
  }
  compare<float, 1, true, true>({1, 2}, 1e-4);
}

TEST_CASE("a GPT of bfloat16 weights with masters on GPUs learns with the host's losses") {
  compare<distx::bfloat16, 2, false, true, distx::Precision<distx::bfloat16>>({2, 1}, 1e-3);
}
