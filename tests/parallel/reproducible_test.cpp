// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include "kinds.hpp"

namespace {

constexpr int virtual_ranks = 8;
template <class... Policies>
using InTree =
    distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Reproducible<virtual_ranks>, Policies...>;
using Accumulating = distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Accumulate<distx::Local>>;

/// The weights of rank 0.
template <class Training, class T = float, class Optimizer>
kinds::Trained on_ranks(int ranks, const Optimizer& optimizer, const kinds::Way& way) {
  kinds::Trained first;
  toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
    auto trained = kinds::train<Training, T>(comm, optimizer, way);
    if (comm.rank() == 0) first = std::move(trained);
  });
  return first;
}

/// Checks the weights of all numbers of ranks at all stages against those of one rank at stage 0.
template <class Training, class T = float, class Optimizer>
void check_one_result(const Optimizer& optimizer, distx::DataParallelOptions options = {},
                      std::initializer_list<std::size_t> buckets = {0, 4096, distx::unlimited}) {
  auto plain = options;
  plain.stage = 0;
  const auto expected = on_ranks<Training, T>(1, optimizer, {plain}).weights;
  for (const int ranks : {1, 2, 4, 8}) {
    CAPTURE(ranks);
    stages::for_each_way(
        options, 3,
        [&](const auto& each, bool borrowed) {
          CHECK(toy::same_bits(on_ranks<Training, T>(ranks, optimizer, {each, borrowed}).weights, expected));
        },
        buckets);
  }
}

/// The weights after two steps of SGD, worked out by hand: the sum is that of one tree.
std::vector<float> by_hand(int steps) {
  std::vector<float> weights = toy::Model().weights();
  for (int step = 0; step < steps; ++step) {
    std::size_t at = 0;
    for (std::size_t p = 0; p < toy::sizes.size(); ++p)
      for (std::size_t i = 0; i < toy::sizes[p]; ++i, ++at) {
        float g[virtual_ranks];
        for (std::size_t v = 0; v < virtual_ranks; ++v)
          g[v] = weights[at] - static_cast<float>(toy::target(p, i, 10 * static_cast<std::size_t>(step) + v));
        const float sum = ((g[0] + g[1]) + (g[2] + g[3])) + ((g[4] + g[5]) + (g[6] + g[7]));
        weights[at] -= 0.5f * (sum / virtual_ranks);
      }
  }
  return weights;
}

}  // namespace

TEST_CASE("Reproducible averages gradients in the order of one tree") {
  const auto expected = by_hand(2);
  for (const int ranks : {1, 2, 4, 8})
    toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
      toy::Model model;
      auto refs = model.parameters();
      InTree<> training(comm, refs, distx::SGD{}, {.stage = 1});
      const auto count = static_cast<std::size_t>(virtual_ranks / ranks);
      for (std::size_t step = 0; step < 2; ++step) {
        for (std::size_t k = 0; k < count; ++k) {
          const auto scope = training.micro_batch({.index = k, .count = count});
          stages::pass(training, refs, 10 * step + static_cast<std::size_t>(comm.rank()) * count + k);
        }
        training.step({.learning_rate = 0.5});
      }
      CHECK(toy::same_bits(model.weights(), expected));
    });
}

TEST_CASE("with Reproducible the bits do not depend on the number of ranks, stages, buckets and overlap") {
  check_one_result<InTree<>>(distx::AdamW{.weight_decay = 0.125});
}

TEST_CASE("with Reproducible norms, whole matrices and unused parameters do not depend on the number of ranks") {
  check_one_result<InTree<>>(distx::SGD{.momentum = 0.5}, {.allow_unused = true, .clip_norm = 1}, {4096});
  check_one_result<InTree<>>(distx::LAMB{}, {}, {4096});
  check_one_result<InTree<>>(kinds::Mixture{distx::Muon{.iterations = 2}}, {.clip_norm = 1}, {4096});
}

TEST_CASE("with Reproducible the bits of every element type do not depend on the number of ranks") {
  using distx::Precision, distx::bfloat16, distx::float16;
  check_one_result<InTree<>, double>(distx::AdamW{}, {}, {4096});
  check_one_result<InTree<>, bfloat16>(distx::AdamW{}, {}, {4096});
  check_one_result<InTree<Precision<bfloat16>>, bfloat16>(distx::AdamW{}, {}, {4096});
  check_one_result<InTree<Precision<float>>, bfloat16>(distx::AdamW{}, {.clip_norm = 1}, {4096});
  check_one_result<InTree<Precision<float16>>, float16>(distx::AdamW{}, {}, {4096});
}
