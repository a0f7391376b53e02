// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The distance of float's losses from double's: the largest relative difference over 100 steps of training the GPT and
// LeNet of the examples with AdamW, at learning rates without chaos, from the same weights and on the same data. Prints
// each seed's, then the median; the status is 1 if that is above the limit.
//   loss_distance ROOT [DIGITS]
// The GPT learns the headers and pages of the checkout ROOT; LeNet learns DIGITS, or the build folder's
// data/digits.csv.gz.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <distx/threads.hpp>
#include <distx/training.hpp>

#include "data/corpus.hpp"
#include "data/small_digits.hpp"
#include "models/gpt.hpp"
#include "models/lenet.hpp"

namespace {

constexpr std::size_t steps = 100;
constexpr int seeds = 12;
constexpr distx::AdamW optimizer{.beta2 = 0.99};

/// Rounds weights to float, so that all types begin with the same ones.
void round_to_float(auto&& weights) {
  for (auto& weight : weights) weight = static_cast<float>(weight);
}

template <class T>
std::vector<double> gpt_losses(distx::SerialCommunicator& comm, const examples::Corpus& corpus, std::uint64_t seed) {
  constexpr std::size_t context = 64, batch = 8;
  examples::BasicGpt<T> model({corpus.vocabulary(), context, 64, 3, 4}, seed);
  distx::DataParallel<> training(comm, model.parameters(), optimizer);
  for (const auto* parameter : model.parameters()) round_to_float(parameter->value());
  const auto rate = distx::schedules::warm_up(steps / 20, distx::schedules::cosine(1e-3, steps - steps / 20));
  examples::Generator generator(seed);
  std::vector<double> losses;
  for (std::size_t step = 0; step < steps; ++step) {
    std::vector<std::size_t> places(batch);
    for (auto& place : places) place = examples::below(generator, corpus.sequences(context));
    const auto text = corpus.batch(places, context);
    losses.push_back(static_cast<double>(model.forward(text.tokens, text.targets, context, training)));
    model.backward(training);
    training.step({.learning_rate = rate(step)});
  }
  return losses;
}

template <class T>
std::vector<double> lenet_losses(distx::SerialCommunicator& comm, const examples::Digits& digits, std::uint64_t seed) {
  constexpr std::size_t batch = 16;
  examples::BasicLeNet<T> model({1, static_cast<Eigen::Index>(digits.height), static_cast<Eigen::Index>(digits.width)},
                                seed);
  std::vector<distx::ParameterRef<T>> parameters;
  for (auto& layer : model.layers()) {
    round_to_float(std::span(layer.weight.data(), static_cast<std::size_t>(layer.weight.size())));
    parameters.push_back(distx::ref(layer.name + ".weight", layer.weight, layer.weight_gradient));
    parameters.push_back(
        distx::ref(layer.name + ".bias", layer.bias, layer.bias_gradient, {.group = {.weight_decay = 0.0}}));
  }
  distx::DataParallel<> training(comm, parameters, optimizer);
  const auto rate = distx::schedules::cosine(2e-3, steps);
  examples::Generator generator(seed);
  std::vector<double> losses;
  for (std::size_t step = 0; step < steps; ++step) {
    std::vector<std::size_t> places(batch);
    for (auto& place : places) place = examples::below(generator, digits.size());
    const auto chosen = examples::select(digits, places);
    const std::vector<T> images(chosen.images.begin(), chosen.images.end());
    losses.push_back(static_cast<double>(model.forward(images, chosen.labels)));
    model.backward([](auto&) {});
    training.ready(parameters);
    training.step({.learning_rate = rate(step)});
  }
  return losses;
}

/// Prints the distances of all seeds, and returns whether their median is within the limit.
template <class Losses>
bool within(const char* name, double limit, Losses&& losses) {
  std::vector<double> distances;
  for (int seed = 1; seed <= seeds; ++seed) {
    const auto [of_float, of_double] = losses(static_cast<std::uint64_t>(seed));
    double largest = 0;
    std::size_t at = 0;
    for (std::size_t i = 0; i < of_float.size(); ++i)
      if (const double d = std::abs(of_float[i] - of_double[i]) / of_double[i]; d > largest) largest = d, at = i;
    std::printf("%s, seed %2d: %.1e (step %zu), losses %.4f to %.4f\n", name, seed, largest, at, of_double.front(),
                of_double.back());
    std::fflush(stdout);
    distances.push_back(largest);
  }
  std::ranges::sort(distances);
  const double median = (distances[seeds / 2 - 1] + distances[seeds / 2]) / 2;
  std::printf("%s: median %.2e (%.1e to %.1e), limit %.0e\n", name, median, distances.front(), distances.back(), limit);
  return median <= limit;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::puts("usage: loss_distance ROOT [DIGITS]");
    return 2;
  }
  distx::SelfConnector self;
  distx::SerialCommunicator comm(self);
  const auto digits = examples::small_digits(false, argc > 2 ? argv[2] : "", argv[0], "a file as DIGITS").training;
  const bool lenet = within("LeNet", 5e-7, [&](std::uint64_t seed) {
    return std::pair(lenet_losses<float>(comm, digits, seed), lenet_losses<double>(comm, digits, seed));
  });
  const examples::Corpus corpus(examples::read_text(examples::headers_and_pages(argv[1])));
  const bool gpt = within("GPT", 1e-7, [&](std::uint64_t seed) {
    return std::pair(gpt_losses<float>(comm, corpus, seed), gpt_losses<double>(comm, corpus, seed));
  });
  return lenet && gpt ? 0 : 1;
}
