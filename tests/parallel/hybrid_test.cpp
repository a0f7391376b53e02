// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include "stages.hpp"

using namespace distx::literals;

namespace {

using HybridTraining = distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Hybrid>;

/// Every rank's weights, and the bytes of state that it holds.
std::vector<std::pair<std::vector<float>, std::size_t>> train(int ranks, const distx::DataParallelOptions& options) {
  std::vector<std::pair<std::vector<float>, std::size_t>> all(static_cast<std::size_t>(ranks));
  toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
    const auto parameters = stages::owned();
    HybridTraining training(comm, parameters, distx::AdamW{}, options);
    for (std::size_t step = 0; step < 3; ++step) {
      stages::pass(training, parameters, 10 * step + static_cast<std::size_t>(comm.rank()));
      training.step({.learning_rate = 0.01});
    }
    auto& [weights, state] = all[static_cast<std::size_t>(comm.rank())];
    state = training.memory().optimizer.held;
    const auto whole = training.unshard(parameters);
    for (const auto& p : parameters) weights.insert(weights.end(), p.value().begin(), p.value().end());
  });
  return all;
}

/// The same training by hand, in double: the distance of a weight to the mean of the ranks' targets is its gradient.
std::vector<double> by_hand(int ranks, double clip) {
  const distx::AdamW adam{};
  std::vector<double> weights, first, second, gradients;
  for (std::size_t p = 0; p < toy::sizes.size(); ++p)
    for (std::size_t i = 0; i < toy::sizes[p]; ++i) weights.push_back(toy::first_weight(p, i));
  first.resize(weights.size());
  second.resize(weights.size());
  for (std::size_t step = 0; step < 3; ++step) {
    gradients.clear();
    double squares = 0;
    for (std::size_t p = 0; p < toy::sizes.size(); ++p)
      for (std::size_t i = 0; i < toy::sizes[p]; ++i) {
        double gradient = weights[gradients.size()];
        for (int rank = 0; rank < ranks; ++rank)
          gradient -= toy::target(p, i, 10 * step + static_cast<std::size_t>(rank)) / ranks;
        gradients.push_back(gradient);
        squares += gradient * gradient;
      }
    const double factor = std::min(1.0, clip / std::sqrt(squares)), t = static_cast<double>(step + 1);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double gradient = factor * gradients[i];
      first[i] = adam.beta1 * first[i] + (1 - adam.beta1) * gradient;
      second[i] = adam.beta2 * second[i] + (1 - adam.beta2) * gradient * gradient;
      const double mean = first[i] / (1 - std::pow(adam.beta1, t)), square = second[i] / (1 - std::pow(adam.beta2, t));
      weights[i] -= 0.01 * (mean / (std::sqrt(square) + adam.epsilon) + adam.weight_decay * weights[i]);
    }
  }
  return weights;
}

}  // namespace

TEST_CASE("Hybrid shards inside groups, and all groups have the weights of a training by hand") {
  for (const auto& [ranks, group] : {std::pair{4, 2}, {4, 4}, {4, 1}, {6, 3}})
    for (const double clip : {std::numeric_limits<double>::infinity(), 1.0}) {
      const auto expected = by_hand(ranks, clip);
      std::vector<float> reference;
      const std::size_t whole = train(1, {.bucket_bytes = 4_KiB, .stage = 1, .group_ranks = 1}).front().second;
      for (const auto& [stage, shares] : {std::pair{1, false}, {2, false}, {3, false}, {1, true}, {2, true}}) {
        CAPTURE(ranks);
        CAPTURE(group);
        CAPTURE(stage);
        CAPTURE(shares);
        const auto all = train(
            ranks,
            {.bucket_bytes = 4_KiB, .stage = stage, .clip_norm = clip, .share_weights = shares, .group_ranks = group});
        if (reference.empty()) {
          reference = all.front().first;
          double apart = 0;
          for (std::size_t i = 0; i < reference.size(); ++i)
            apart = std::max(apart, std::abs(static_cast<double>(reference[i]) - expected[i]));
          CHECK(apart < 1e-5);
        }
        std::size_t state = 0;
        for (int rank = 0; rank < group; ++rank) state += all[static_cast<std::size_t>(rank)].second;
        CHECK(state == whole);  // each group has all of it
        for (const auto& [weights, held] : all) CHECK(toy::same_bits(weights, reference));
      }
    }
}

TEST_CASE("invalid groups are errors") {
  const auto words = [](int ranks, const distx::DataParallelOptions& options) {
    return toy::endings(ranks,
                        [&](auto& comm) {
                          const auto parameters = stages::owned();
                          HybridTraining training(comm, parameters, distx::SGD{}, options);
                        })
        .back()
        .words;
  };
  CHECK(toy::says(words(4, {.stage = 1, .group_ranks = 3}), "Hybrid needs a divisor of the 4 ranks"));
  CHECK(toy::says(words(4, {.stage = 1}), ".group_ranks = 0"));
  CHECK(toy::says(words(4, {.stage = 0, .group_ranks = 2}), "Hybrid sharding requires stage 1, 2 or 3"));
}
