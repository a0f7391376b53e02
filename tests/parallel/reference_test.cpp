// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include <limits>

#include "toy.hpp"

// Several ranks train as one process would on all their samples together.
namespace reference_test {

namespace {

constexpr int steps = 6;
constexpr double rate = 0.125;
constexpr std::size_t batch = 2;  // of one rank

/// By the book, in double: one weight, all samples of a step together.
template <class Update>
double reference(std::size_t p, std::size_t i, std::size_t samples, Update&& update) {
  double w = static_cast<float>(toy::first_weight(p, i));
  for (int step = 1; step <= steps; ++step) {
    double gradient = 0;
    for (std::size_t sample = 0; sample < samples; ++sample)
      gradient += w - static_cast<float>(toy::target(p, i, static_cast<std::size_t>(step) * samples + sample));
    update(w, gradient / static_cast<double>(samples), step);
  }
  return w;
}

template <class Optimizer>
std::vector<float> train(int ranks, const Optimizer& optimizer) {
  std::vector<float> result;
  toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
    toy::Model model;
    distx::DataParallel<distx::ZeRO<0>> training(comm, model.parameters(), optimizer, {.bucket_bytes = 4096});
    const std::size_t samples = batch * static_cast<std::size_t>(comm.size());
    for (int step = 1; step <= steps; ++step) {
      const std::size_t first =
          static_cast<std::size_t>(step) * samples + batch * static_cast<std::size_t>(comm.rank());
      for (std::size_t p = model.layers.size(); p-- > 0;) {
        model.backward(p, first, batch);
        training.ready(model.layers[p].weight);
      }
      training.step({.learning_rate = rate});
    }
    if (comm.rank() == comm.size() - 1) result = model.weights();
  });
  return result;
}

template <class Update>
void compare(const std::vector<float>& weights, std::size_t samples, double tolerance, Update&& make_update) {
  std::size_t at = 0;
  double worst = 0;
  for (std::size_t p = 0; p < toy::sizes.size(); ++p)
    for (std::size_t i = 0; i < toy::sizes[p]; ++i)
      worst = std::max(worst, std::abs(static_cast<double>(weights[at++]) - reference(p, i, samples, make_update())));
  CHECK(at == weights.size());
  CHECK(worst <= tolerance);
}

// Weights and targets stay below 2, a gradient below 4. It is a sum of at most 2 differences and then of 7 averages,
// 12 roundings each at most half an epsilon of 4; the update adds 4 more and its own.
constexpr double rounding = std::numeric_limits<float>::epsilon() / 2 * 4 * (12 + 4);

}  // namespace

TEST_CASE("SGD with momentum equals one process on the joined batch") {
  for (const int ranks : toy::rank_counts) {
    CAPTURE(ranks);
    constexpr double momentum = 0.5;
    const auto weights = train(ranks, distx::SGD{.momentum = momentum});
    // An error in a gradient is seen 1 / (1 - momentum) times, in each step, times the rate; the weight's own rounding
    // comes on top. The loss is convex: an error in a weight does not grow.
    compare(weights, batch * static_cast<std::size_t>(ranks), steps * (rounding * rate / (1 - momentum) + rounding / 8),
            [] {
              return [v = 0.0](double& w, double gradient, int) mutable {
                v = momentum * v + gradient;
                w -= rate * v;
              };
            });
  }
}

TEST_CASE("AdamW equals one process on the joined batch") {
  for (const int ranks : toy::rank_counts) {
    CAPTURE(ranks);
    // A large epsilon, so that an error in a gradient is not blown up where the gradient is near 0: at most divided by
    // epsilon, in each step, and again by way of the weight.
    const distx::AdamW optimizer{.beta1 = 0.5, .beta2 = 0.75, .epsilon = 0.5, .weight_decay = 0.0625};
    const auto weights = train(ranks, optimizer);
    compare(weights, batch * static_cast<std::size_t>(ranks),
            steps * std::pow(1 + rate / optimizer.epsilon, steps) * rounding * (rate / optimizer.epsilon + 1.0 / 8),
            [&] {
              return [&, m = 0.0, v = 0.0](double& w, double gradient, int step) mutable {
                m = optimizer.beta1 * m + (1 - optimizer.beta1) * gradient;
                v = optimizer.beta2 * v + (1 - optimizer.beta2) * gradient * gradient;
                const double mean = m / (1 - std::pow(optimizer.beta1, step));
                const double square = v / (1 - std::pow(optimizer.beta2, step));
                w -= rate * (mean / (std::sqrt(square) + optimizer.epsilon) + optimizer.weight_decay * w);
              };
            });
  }
}

TEST_CASE("all ranks have the same weights after each step") {
  for (const int ranks : toy::rank_counts) {
    std::vector<std::vector<float>> weights(static_cast<std::size_t>(ranks));
    toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
      toy::Model model(comm.rank());
      distx::DataParallel training(comm, model.parameters(), distx::SGD{});
      for (std::size_t p = 0; p < model.layers.size(); ++p) {
        model.backward(p, static_cast<std::size_t>(comm.rank()), 1);
        training.ready(model.layers[p].weight);
      }
      training.step({.learning_rate = rate});
      weights[static_cast<std::size_t>(comm.rank())] = model.weights();
    });
    for (const auto& other : weights) CHECK(toy::same_bits(other, weights[0]));
  }
}

}  // namespace reference_test
