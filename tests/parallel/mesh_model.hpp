// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <doctest/doctest.h>
#include <distx/parallel/mesh_parallel.hpp>
#include <distx/tensor.hpp>

#include "toy.hpp"

// A model of three weights: one that is sharded over the model axis, in rows that do not divide, one that is replicated
// and whose gradient is the same everywhere, and one that is replicated and whose gradient is a sum of terms.
namespace mesh_model {

struct Data {};
struct Model {};
using Grid = distx::Mesh<Data, Model>;

constexpr std::size_t rows = 5, columns = 3;
constexpr int steps = 4, samples = 6;

inline double first(std::size_t i) { return std::sin(0.7 * static_cast<double>(i)); }
inline double slope(double weight, std::size_t i, int sample, int step) {
  return weight - std::cos(0.3 * static_cast<double>(i) + sample + 2.0 * step);
}

/// All weights, one after another, as one process would train them.
struct Whole {
  std::vector<float> weights = std::vector<float>(rows * columns + 4 + 3), gradients = weights;
  std::vector<double> norms;

  explicit Whole(const distx::DataParallelOptions& options) {
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(first(i));
    toy::on_ranks(1, [&](distx::ThreadCommunicator& comm) {
      const std::vector parameters{distx::ref("all", weights, gradients)};
      distx::DataParallel<> training(comm, parameters, distx::AdamW{}, options);
      for (int step = 0; step < steps; ++step) {
        for (std::size_t i = 0; i < weights.size(); ++i) {
          double sum = 0;
          for (int sample = 0; sample < samples; ++sample) sum += slope(weights[i], i, sample, step);
          gradients[i] = static_cast<float>(sum / samples);
        }
        training.ready(parameters);
        training.step({.learning_rate = 0.05});
        norms.push_back(training.gradient_norm());
      }
    });
  }
};

/// A weight's part, in the host's memory.
template <class W>
std::vector<float> here(const W& weight) {
  std::vector<float> values(weight.local().size());
  const auto stream = weight.mesh().template stream<typename W::space>();
  copy(stream, distx::Span<float>(values), weight.local());  // the space's
  stream.synchronize();
  return values;
}

/// Trains the model in a memory, and checks that it becomes what one process trains. Collective over the mesh.
template <class Space, int Stage>
void train(const Grid& mesh, const distx::DataParallelOptions& options, const Whole& expected) {
  const auto at = [](std::size_t begin) {
    return [=]<std::size_t R>(const std::array<std::size_t, R>& index) {
      std::size_t i = index[0];
      if constexpr (R == 2) i = i * columns + index[1];
      return first(begin + i);
    };
  };
  using Cut = distx::Layout<distx::Shard<0, Model>>;
  const distx::TensorParameter<float, 2, Grid, Cut, Space> sharded("sharded", mesh, {rows, columns}, at(0));
  const distx::TensorParameter<float, 1, Grid, distx::Layout<>, Space> same("same", mesh, {4}, at(rows * columns));
  const distx::TensorParameter<float, 1, Grid, distx::Layout<>, Space> terms("terms", mesh, {3},
                                                                             at(rows * columns + 4));
  distx::TensorParameterList<Space> list;
  list.add(sharded, same, terms);
  distx::MeshParallel<Data, distx::ZeRO<Stage>, distx::On<Space>> training(mesh, list, distx::AdamW{}, options);
  if (options.offload || !options.state_folder.empty()) CHECK(training.memory().optimizer.peak == 0);

  const int mine = samples / mesh.size<Data>(), begin = mine * mesh.coordinate<Data>();
  for (int step = 0; step < steps; ++step) {
    const auto gradient = [&](std::size_t i, float weight) {
      double sum = 0;
      for (int sample = begin; sample < begin + mine; ++sample) sum += slope(weight, i, sample, step);
      return static_cast<float>(sum / mine);
    };
    auto weights = training.unshard(sharded, same, terms);
    distx::DistTensor<float, 2, Grid, distx::Layout<distx::Shard<0, Model>, distx::Partial<Data>>> of_sharded(
        mesh, sharded.extents());
    const std::size_t offset = sharded.offset()[0] * columns;
    const auto cut = here(sharded), whole = here(same), summed = here(terms);
    for (std::size_t i = 0; i < cut.size(); ++i) of_sharded.local()[i] = gradient(offset + i, cut[i]);
    training.ready(sharded, distx::to_space<Space>(of_sharded));

    distx::DistTensor<float, 1, Grid, distx::Layout<distx::Partial<Data>>> of_same(mesh, same.extents());
    for (std::size_t i = 0; i < 4; ++i) of_same.local()[i] = gradient(rows * columns + i, whole[i]);
    training.ready(same, distx::to_space<Space>(of_same));

    // Place m of the model axis has element m, or m and all that follow.
    distx::DistTensor<float, 1, Grid, distx::Layout<distx::Partial<Data>, distx::Partial<Model>>> of_terms(
        mesh, terms.extents());
    for (std::size_t i = 0; i < 3; ++i)
      if (std::min(static_cast<int>(i), mesh.size<Model>() - 1) == mesh.coordinate<Model>())
        of_terms.local()[i] = gradient(rows * columns + 4 + i, summed[i]);
    training.ready(terms, distx::to_space<Space>(of_terms));
    weights = {};
    training.step({.learning_rate = 0.05});
    CHECK(training.gradient_norm() == doctest::Approx(expected.norms[static_cast<std::size_t>(step)]).epsilon(1e-5));
  }
  const auto weights = training.unshard(sharded, same, terms);
  const auto check = [&](const std::vector<float>& part, std::size_t place) {
    for (const float value : part) CHECK(value == doctest::Approx(expected.weights[place++]).epsilon(1e-5));
  };
  check(here(sharded), sharded.offset()[0] * columns);
  check(here(same), rows * columns);
  check(here(terms), rows * columns + 4);
}

}  // namespace mesh_model
