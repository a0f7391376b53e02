// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "counting_text.hpp"

#include <doctest/doctest.h>
#include <distx/optim/adamw.hpp>
#include <distx/parallel/mesh_parallel.hpp>
#include <distx/threads.hpp>

#include <chrono>

namespace mesh_gpt_test {

namespace {

struct Data {};
struct Model {};
using Grid = distx::Mesh<Data, Model>;

// 2 and 3 divide neither the vocabulary nor the sequences' length, 3 neither the heads nor the perceptron's width.
const examples::GptShape shape{.vocabulary = 11, .context = 7, .width = 16, .layers = 2, .heads = 4};
constexpr int sequences = 4, steps = 20;

/// Calls `each(step, loss of that rank)`.
template <class M, class Training, class F>
void train(M& model, Training& training, int place, int places, F&& each) {
  const int count = sequences / places;
  for (int step = 0; step < steps; ++step) {
    const auto inputs = test::counting_text(shape.context, step, place * count, count, 0),
               targets = test::counting_text(shape.context, step, place * count, count, 1);
    double loss = 0;
    if constexpr (requires { typename M::Activations; }) {
      auto [mean, kept] = model.forward(inputs, targets, shape.context, training);
      model.backward(std::move(kept), training);
      loss = static_cast<double>(mean);
    } else {
      loss = static_cast<double>(model.forward(inputs, targets, shape.context, training));
      model.backward(training);
    }
    training.step({.learning_rate = 0.02});
    each(step, loss);
  }
}

template <class F>
void on_ranks(int ranks, F&& f) {
  using namespace std::chrono_literals;
  distx::spawn(distx::threads(ranks, 20s), [&](distx::ThreadConnector& connector) {
    distx::ThreadCommunicator comm(connector, 20s);
    f(comm);
  });
}

const distx::DataParallelOptions options{.clip_norm = 0.5};

std::vector<double> losses_of_one_process() {
  std::vector<double> losses;
  on_ranks(1, [&](distx::ThreadCommunicator& comm) {
    examples::Gpt model(shape, 1);
    distx::DataParallel<> training(comm, model.parameters(), distx::AdamW{}, options);
    train(model, training, 0, 1, [&](int, double loss) { losses.push_back(loss); });
  });
  return losses;
}

template <int Stage, bool SequenceParallel>
std::vector<double> losses_on(const std::array<int, 2>& mesh_shape) {
  std::vector<double> losses(steps);
  on_ranks(mesh_shape[0] * mesh_shape[1], [&](distx::ThreadCommunicator& comm) {
    const Grid mesh(comm, mesh_shape);
    examples::MeshGpt<float, distx::layers::TensorParallel<Grid, Data, Model, SequenceParallel>> model(mesh, shape, 1);
    distx::TensorParameterList<> list;
    model.for_each_parameter([&](const auto& parameter) { list.add(parameter); });
    distx::MeshParallel<Data, distx::ZeRO<Stage>> training(mesh, list, distx::AdamW{}, options);
    train(model, training, mesh.coordinate<Data>(), mesh.size<Data>(), [&](int step, double loss) {
      distx::all_reduce(mesh.along<Data>(), loss, distx::average);
      if (comm.rank() == 0) losses[static_cast<std::size_t>(step)] = loss;
    });
  });
  return losses;
}

double farthest(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]) / std::abs(b[i]));
  return most;
}

}  // namespace

TEST_CASE("a GPT split over a mesh learns as one process does") {
  const auto expected = losses_of_one_process();
  REQUIRE(expected.back() < 0.8 * expected.front());
  for (const auto mesh : {std::array{1, 1}, {2, 1}, {1, 2}, {2, 2}, {1, 3}}) {
    INFO(mesh[0], " x ", mesh[1]);
    CHECK(farthest(losses_on<0, false>(mesh), expected) < 1e-4);
    CHECK(farthest(losses_on<1, false>(mesh), expected) < 1e-4);
    CHECK(farthest(losses_on<1, true>(mesh), expected) < 1e-4);
  }
}

}  // namespace mesh_gpt_test
