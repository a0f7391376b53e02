// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A GPT on GPUs, whose layers are those of the host with another memory space: it learns with the host's losses.
#include <distx/memory/local_matmul.hpp>
#include <distx/memory/operations.hpp>

namespace distx {

/// Multiplies in the host's memory as on GPUs: rounds `left` first. Layers of bfloat16 in host memory use it, so no
/// other file of this program may have any.
inline void local_matmul(HostStream stream, MatrixRef<float> out, MatrixRef<const float> left,
                         MatrixRef<const bfloat16> right) {
  const Buffer<bfloat16> rounded(left.values.size());
  const Buffer<float> a(left.values.size()), b(right.values.size());
  cast(stream, rounded.span(), left.values);
  cast(stream, a.span(), rounded.span());
  cast(stream, b.span(), right.values);
  local_matmul(stream, out, MatrixRef<const float>{a.span(), left.rows, left.columns, left.transposed},
               MatrixRef<const float>{b.span(), right.rows, right.columns, right.transposed});
}

}  // namespace distx

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

/// Returns this rank's losses in GPU memory, of steps that are captured after the first one, or not.
template <class Weight, int Stage, bool Recompute, class... Policies>
std::vector<float> losses_of_steps(const Mesh& mesh, bool captured) {
  using Split = distx::layers::TensorParallel<Mesh, Data, Model, false, Cuda>;
  const examples::MeshGpt<Weight, Split, Recompute> model(mesh, shape, 1);
  distx::TensorParameterList<Cuda> list;
  model.for_each_parameter([&](const auto& parameter) { list.add(parameter); });
  distx::MeshParallel<Data, distx::ZeRO<Stage>, distx::On<Cuda>, distx::Accumulate<distx::Sharded>, Policies...>
      training(mesh, list, distx::AdamW{}, {.bucket_bytes = 4000, .clip_norm = 0.5});
  const auto stream = mesh.stream<Cuda>();
  const int count = sequences / mesh.size<Data>(), first = mesh.coordinate<Data>() * count;
  const auto tokens = [&](int step, std::size_t ahead) {
    return model.of_tokens(test::counting_text(shape.context, step, first, count, ahead), shape.context);
  };
  auto ids = tokens(0, 0), targets = tokens(0, 1);
  const distx::Buffer<float, Cuda> found(static_cast<std::size_t>(count) * shape.context);
  const auto step = [&](double rate) {
    for (std::size_t part = 0; part < 2; ++part) {
      const auto scope = training.micro_batch({part, 2});
      auto [losses, kept] = model.losses(ids.clone(), targets.clone(), training);
      copy(stream, found.span(), std::as_const(losses).local());
      model.backward(std::move(kept), training, 0.5F);
    }
    training.step({.learning_rate = rate});
  };
  std::vector<float> all;
  for (int number = 0; number < steps; ++number) {
    const auto new_ids = tokens(number, 0), new_targets = tokens(number, 1);
    copy(stream, ids.local(), new_ids.local());
    copy(stream, targets.local(), new_targets.local());
    const double rate = 0.02 / (number + 1);
    if (captured && number == 1) training.capture([&] { step(0); });
    if (captured && number > 0)
      training.replay({.learning_rate = rate});
    else
      step(rate);
    std::vector<float> here(found.size());
    copy(stream, distx::Span<float>(here), distx::Span<const float, Cuda>(found));
    stream.synchronize();
    all.insert(all.end(), here.begin(), here.end());
  }
  return all;
}

template <class Weight, int Stage, bool Recompute = false, class... Policies>
void compare_captured(std::pair<int, int> mesh_shape) {
  on_mesh(mesh_shape, [&](Rank& rank) {
    INFO(mesh_shape.first, " x ", mesh_shape.second, ", stage ", Stage);
    const auto plain = losses_of_steps<Weight, Stage, Recompute, Policies...>(rank.gpus, false);
    const auto captured = losses_of_steps<Weight, Stage, Recompute, Policies...>(rank.gpus, true);
    CHECK(plain.back() < 0.95F * plain.front());
    CHECK(gpu_meshes::same_bits(distx::Span<const float>(plain), distx::Span<const float>(captured)));
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

TEST_CASE("layers of bfloat16 weights on GPUs multiply numbers that are rounded to bfloat16, and sum in float") {
  on_mesh({1, 1}, [](Rank& rank) {
    using Split = distx::layers::TensorParallel<Mesh, Data, Model, false, Cuda>;
    const distx::layers::ColumnParallel<distx::bfloat16, Split> layer("layer", rank.gpus, {2, 1},
                                                                      [](const auto&) { return 1.0F; });
    distx::TensorParameterList<Cuda> list;
    layer.for_each_parameter([&](const auto& parameter) { list.add(parameter); });
    distx::MeshParallel<Data, distx::ZeRO<0>, distx::On<Cuda>, distx::Precision<distx::bfloat16>> training(
        rank.gpus, list, distx::AdamW{});
    // Neither 256.5 nor the sum 257 is a bfloat16.
    const auto x = distx::generate<float, Cuda, Split::tokens>(
        rank.gpus, {1, 1, 2}, [](const auto& index) { return index[2] == 0 ? 256.5F : 1.0F; });
    const auto y = distx::to_space<Host>(layer.forward(x, training));
    CHECK(y.local()[0] == 257);
  });
}
TEST_CASE("a GPT of bfloat16 weights with masters on GPUs learns with the host's losses") {
  compare<distx::bfloat16, 2, false, true, distx::Precision<distx::bfloat16>>({2, 1}, 1e-3);
}

TEST_CASE("a GPT's captured steps have the losses of steps that are not captured, to the bit") {
  compare_captured<float, 0>({1, 1});
  compare_captured<float, 1>({2, 1});
  compare_captured<float, 2>({1, 2});
  compare_captured<distx::bfloat16, 2, true, distx::Precision<distx::bfloat16>>({2, 1});
}
