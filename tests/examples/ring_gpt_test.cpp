// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "counting_text.hpp"

#include <doctest/doctest.h>
#include <distx/optim/adamw.hpp>
#include <distx/parallel/mesh_parallel.hpp>
#include <distx/threads.hpp>

#include <chrono>

namespace ring_gpt_test {

namespace {

struct Data {};
struct Context {};
struct Model {};
using Grid = distx::Mesh<Data, Context, Model>;
using Sizes = std::array<int, 3>;
using distx::layers::Ring;
template <class ContextOf, bool SequenceParallel = false>
using Split = distx::layers::TensorParallel<Grid, Data, Model, SequenceParallel, distx::Host, ContextOf>;

const examples::GptShape shape{.vocabulary = 11, .context = 24, .width = 16, .layers = 2, .heads = 2};
constexpr int sequences = 4, steps = 20;

struct Trained {
  std::vector<double> losses;
  std::vector<float> logits;  // of one sequence, after the last step
};

template <class S, bool Recompute = false>
Trained train(const Sizes& sizes) {
  using namespace std::chrono_literals;
  Trained found;
  distx::spawn(distx::threads(sizes[0] * sizes[1] * sizes[2], 60s), [&](distx::ThreadConnector& connector) {
    distx::ThreadCommunicator comm(connector, 60s);
    const Grid mesh(comm, sizes);
    examples::MeshGpt<float, S, Recompute> model(mesh, shape, 1);
    distx::TensorParameterList<> list;
    model.for_each_parameter([&](const auto& parameter) { list.add(parameter); });
    distx::MeshParallel<Data, distx::ZeRO<1>> training(mesh, list, distx::AdamW{}, {.clip_norm = 0.5});
    const int count = sequences / sizes[0], first = mesh.coordinate<Data>() * count;
    for (int step = 0; step < steps; ++step) {
      const auto inputs = test::counting_text(shape.context, step, first, count, 0),
                 targets = test::counting_text(shape.context, step, first, count, 1);
      auto [mean, kept] = model.forward(inputs, targets, shape.context, training);
      model.backward(std::move(kept), training);
      training.step({.learning_rate = 0.005});
      auto loss = static_cast<double>(mean);
      distx::all_reduce(mesh.along<Data>(), loss, distx::average);
      if (comm.rank() == 0) found.losses.push_back(loss);
    }
    const auto scope = training.evaluate();
    const auto& logits = model.logits(test::counting_text(shape.context, steps, 0, 1, 0), shape.context, training);
    if (comm.rank() == 0) found.logits.assign(logits.data(), logits.data() + logits.size());
  });
  return found;
}

void check(const std::string& name, const Trained& found, const Trained& expected) {
  INFO(name);
  for (std::size_t i = 0; i < expected.losses.size(); ++i)
    CHECK(std::abs(found.losses.at(i) - expected.losses[i]) < 1e-6 * expected.losses[i]);
  double most = 0, size = 0;
  for (std::size_t i = 0; i < expected.logits.size(); ++i) {
    most = std::max(most, static_cast<double>(std::abs(found.logits.at(i) - expected.logits[i])));
    size = std::max(size, static_cast<double>(std::abs(expected.logits[i])));
  }
  MESSAGE("logits differ by ", most / size);
  CHECK(most < 1e-5 * size);
}

}  // namespace

TEST_CASE("a GPT with ring attention has the losses of one process, also on more ranks than it has heads") {
  const auto expected = train<Split<Context>>({1, 1, 1});
  REQUIRE(expected.losses.back() < 0.8 * expected.losses.front());
  check("context 2", train<Split<Ring<Context>>>({1, 2, 1}), expected);
  check("context 3", train<Split<Ring<Context>>>({1, 3, 1}), expected);
  check("context 4", train<Split<Ring<Context>>>({1, 4, 1}), expected);
  check("data 2, context 2", train<Split<Ring<Context>>>({2, 2, 1}), expected);
  check("context 2, model 2", train<Split<Ring<Context>>>({1, 2, 2}), expected);
  // Recomputed, and with ranks whose tokens are of both chunks.
  check("context 2, model 3, sequence parallel", train<Split<Ring<Context>, true>, true>({1, 2, 3}), expected);
}

}  // namespace ring_gpt_test
