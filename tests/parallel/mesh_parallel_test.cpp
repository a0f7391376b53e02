// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <distx/parallel/mesh_parallel.hpp>
#include <distx/tensor/distribute.hpp>
#include <doctest/doctest.h>

#include "toy.hpp"

// A model of three weights: one that is sharded over the model axis, in rows that do not divide, one that is replicated
// and whose gradient is the same everywhere, and one that is replicated and whose gradient is a sum of terms.
namespace mesh_parallel_test {

namespace {

struct Data {};
struct Model {};
using Grid = distx::Mesh<Data, Model>;
template <std::size_t Rank, class... Ps>
using Weight = distx::TensorParameter<float, Rank, Grid, distx::Layout<Ps...>>;

constexpr std::size_t rows = 5, columns = 3;
constexpr int steps = 4, samples = 6;

double first(std::size_t i) { return std::sin(0.7 * static_cast<double>(i)); }
double slope(double weight, std::size_t i, int sample, int step) {
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

template <int Stage>
void train(const std::array<int, 2>& shape, const distx::DataParallelOptions& options, const Whole& expected) {
  toy::on_ranks(shape[0] * shape[1], [&](distx::ThreadCommunicator& comm) {
    const Grid mesh(comm, shape);
    const auto at = [](std::size_t begin) {
      return [=]<std::size_t R>(const std::array<std::size_t, R>& index) {
        std::size_t i = index[0];
        if constexpr (R == 2) i = i * columns + index[1];
        return first(begin + i);
      };
    };
    const Weight<2, distx::Shard<0, Model>> sharded("sharded", mesh, {rows, columns}, at(0));
    const Weight<1> same("same", mesh, {4}, at(rows * columns));
    const Weight<1> terms("terms", mesh, {3}, at(rows * columns + 4));
    distx::TensorParameterList<> list;
    list.add(sharded, same, terms);
    distx::MeshParallel<Data, distx::ZeRO<Stage>> training(mesh, list, distx::AdamW{}, options);

    const int mine = samples / mesh.size<Data>(), begin = mine * mesh.coordinate<Data>();
    for (int step = 0; step < steps; ++step) {
      const auto gradient = [&](std::size_t i, float weight) {
        double sum = 0;
        for (int sample = begin; sample < begin + mine; ++sample) sum += slope(weight, i, sample, step);
        return sum / mine;
      };
      auto weights = training.unshard(sharded, same, terms);
      distx::DistTensor<float, 2, Grid, distx::Layout<distx::Shard<0, Model>, distx::Partial<Data>>> of_sharded(
          mesh, sharded.extents());
      const std::size_t offset = sharded.offset()[0] * columns;
      for (std::size_t i = 0; i < sharded.local().size(); ++i)
        of_sharded.local()[i] = static_cast<float>(gradient(offset + i, sharded.local()[i]));
      training.ready(sharded, of_sharded);

      distx::DistTensor<float, 1, Grid, distx::Layout<distx::Partial<Data>>> of_same(mesh, same.extents());
      for (std::size_t i = 0; i < 4; ++i)
        of_same.local()[i] = static_cast<float>(gradient(rows * columns + i, same.local()[i]));
      training.ready(same, of_same);

      // Place m of the model axis has element m, or m and all that follow.
      distx::DistTensor<float, 1, Grid, distx::Layout<distx::Partial<Data>, distx::Partial<Model>>> of_terms(
          mesh, terms.extents());
      for (std::size_t i = 0; i < 3; ++i)
        if (std::min(static_cast<int>(i), shape[1] - 1) == mesh.coordinate<Model>())
          of_terms.local()[i] = static_cast<float>(gradient(rows * columns + 4 + i, terms.local()[i]));
      training.ready(terms, of_terms);
      weights = {};
      training.step({.learning_rate = 0.05});
      CHECK(training.gradient_norm() == doctest::Approx(expected.norms[static_cast<std::size_t>(step)]).epsilon(1e-5));
    }
    const auto weights = training.unshard(sharded, same, terms);
    const auto check = [&](std::span<const float> part, std::size_t place) {
      for (const float value : part) CHECK(value == doctest::Approx(expected.weights[place++]).epsilon(1e-5));
    };
    check({sharded.local().data(), sharded.local().size()}, sharded.offset()[0] * columns);
    check({same.local().data(), 4}, rows * columns);
    check({terms.local().data(), 3}, rows * columns + 4);
  });
}

}  // namespace

TEST_CASE("weights spread over a mesh are trained as one process would, at every stage") {
  const distx::DataParallelOptions options{.clip_norm = 0.5};
  const Whole expected(options);
  REQUIRE(expected.norms.front() > 0.5);  // so that it is clipped, and the norm matters
  for (const auto shape : {std::array{1, 1}, {2, 1}, {1, 2}, {2, 2}, {1, 3}, {2, 3}, {1, 7}}) {
    INFO(shape[0], " x ", shape[1]);
    train<0>(shape, options, expected);
    train<1>(shape, options, expected);
    train<3>(shape, options, expected);
  }
}

}  // namespace mesh_parallel_test
