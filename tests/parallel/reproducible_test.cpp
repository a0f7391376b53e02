// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include "kinds.hpp"

namespace {

constexpr int virtual_ranks = 8;
template <class... Policies>
using InTree = distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Reproducible<virtual_ranks>, Policies...>;
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
  CHECK(std::all_of(expected.begin(), expected.end(), [](float weight) { return std::isfinite(weight); }));
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

/// The weights after the same steps, with sums of micro-batches on each rank in their order.
template <class C>
std::vector<float> train_sums(C& comm) {
  toy::Model model;
  auto refs = model.parameters();
  Accumulating training(comm, refs, distx::SGD{}, {.stage = 0});
  const auto count = static_cast<std::size_t>(virtual_ranks / comm.size());
  for (std::size_t step = 0; step < 2; ++step) {
    for (std::size_t k = 0; k < count; ++k) {
      const auto scope = training.micro_batch({.index = k, .count = count});
      stages::pass(training, refs, 10 * step + static_cast<std::size_t>(comm.rank()) * count + k);
    }
    training.step({.learning_rate = 0.5 / static_cast<double>(count)});
  }
  return model.weights();
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

TEST_CASE("without Reproducible the bits depend on the number of ranks") {
  const auto expected = by_hand(2);
  for (const int ranks : {2, 4}) {
    // The same samples, divided by the same number: exact.
    std::vector<float> sums;
    toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
      auto trained = train_sums(comm);
      if (comm.rank() == 0) sums = std::move(trained);
    });
    CAPTURE(ranks);
    CHECK_FALSE(toy::same_bits(sums, expected));
    CHECK(sums.size() == expected.size());
    for (std::size_t i = 0; i < sums.size(); i += 11) CHECK(sums[i] == doctest::Approx(expected[i]).epsilon(1e-4));
  }
}

TEST_CASE("Reproducible keeps its bits after ranks have joined and left") {
  // Two ranks, then four, then two of these.
  const auto steps = [](auto& training, auto& parameters, std::size_t first, const auto& comm) {
    const auto count = static_cast<std::size_t>(virtual_ranks / comm.size());
    for (std::size_t step = first; step < first + 2; ++step) {
      for (std::size_t k = 0; k < count; ++k) {
        const auto scope = training.micro_batch({.index = k, .count = count});
        stages::pass(training, parameters, 10 * step + static_cast<std::size_t>(comm.rank()) * count + k);
      }
      training.step({.learning_rate = 0.01});
    }
  };
  const auto weights_of = [](auto& training, const auto& parameters) {
    std::vector<float> all;
    for (const auto& parameter : parameters) {
      const auto scope = training.unshard(parameter);
      all.insert(all.end(), training.value(parameter).begin(), training.value(parameter).end());
    }
    return all;
  };
  using Training = InTree<distx::Replicate>;
  std::vector<float> expected;
  toy::on_ranks(1, [&](auto& comm) {
    auto parameters = stages::owned();
    Training training(comm, parameters, distx::AdamW{}, {.stage = 0});
    for (const std::size_t first : std::vector<std::size_t>{0, 2, 4}) steps(training, parameters, first, comm);
    expected = weights_of(training, parameters);
  });
  for (const int stage : {0, 1, 2, 3})
    toy::on_ranks(4, [&](distx::ThreadCommunicator& comm) {
      CAPTURE(stage);
      auto part = comm.split(comm.rank() / 2, comm.rank());
      auto few = comm.split(comm.rank() % 2, comm.rank());
      auto parameters = stages::owned();
      const bool joins = comm.rank() >= 2;
      Training training(joins ? comm : part, parameters, distx::AdamW{}, {.stage = stage});
      if (!joins) {
        steps(training, parameters, 0, part);
        CHECK(training.recover(comm) == 2);
      }
      steps(training, parameters, 2, comm);
      if (comm.rank() % 2 != 0) return;
      CHECK(training.recover(few) == 4);
      steps(training, parameters, 4, few);
      CHECK(toy::same_bits(weights_of(training, parameters), expected));
    });
}

TEST_CASE("Reproducible rejects numbers of ranks and of micro-batches by name") {
  const auto check = [](int ranks, const std::string& kind, const std::string& words, auto&& call) {
    for (const auto& ending : toy::endings(ranks, [&](auto& comm) {
           const auto parameters = stages::owned();
           InTree<> training(comm, parameters, distx::SGD{}, {.stage = 1});
           call(training, parameters);
         })) {
      CAPTURE(ending.words);
      CHECK(ending.kind == kind);
      CHECK(toy::says(ending.words, words));
    }
  };
  const auto nothing = [](auto&, auto&) {};
  for (const int ranks : {3, 7})
    check(ranks, "argument",
          "the number of ranks, " + std::to_string(ranks) + ", does not divide the 8 virtual ranks of Reproducible<8>",
          nothing);
  for (const std::size_t count : std::vector<std::size_t>{1, 2, 8})
    check(2, "argument",
          "invalid .index = 0, .count = " + std::to_string(count) + ": Reproducible<8> on 2 ranks needs .count = 4",
          [&](auto& training, auto&) { static_cast<void>(training.micro_batch({.index = 0, .count = count})); });
  const std::string fewer = "this step has had fewer micro-batches than the .count that was passed to micro_batch, or";
  check(2, "state", fewer, [](auto& training, auto& parameters) {
    stages::pass(training, parameters, 0);
    training.step({.learning_rate = 1});
  });
  check(4, "state", fewer, [](auto& training, auto& parameters) {
    for (int step = 0; step < 2; ++step) {
      for (std::size_t k = 0; k < (step == 0 ? 2 : 1); ++k) {
        const auto scope = training.micro_batch({.index = k, .count = 2});
        stages::pass(training, parameters, k);
      }
      training.step({.learning_rate = 1});
    }
  });
  check(8, "no error", "", [](auto& training, auto& parameters) {  // a step of one micro-batch needs no scope
    stages::pass(training, parameters, 0);
    training.step({.learning_rate = 1});
  });
}

TEST_CASE("with Reproducible, ranks that call ready in different orders at stage 3 get an error on every rank") {
  for (const bool overlap : {false, true}) {
    const auto endings = toy::endings(4, [&](auto& comm) {
      const auto parameters = stages::owned();
      InTree<> training(comm, parameters, distx::SGD{}, {.bucket_bytes = 0, .overlap = overlap, .stage = 3});
      for (std::size_t k = 0; k < 2; ++k) {
        const auto micro_batch = training.micro_batch({.index = k, .count = 2});
        const auto weights = training.unshard(parameters);
        for (std::size_t p = 0; p < parameters.size(); ++p) {
          const auto& parameter = parameters[comm.rank() == 1 && p < 2 ? 1 - p : p];
          static_cast<void>(training.gradient(parameter));
          training.ready(parameter);
        }
      }
      training.reduce_gradients();
    });
    for (const auto& ending : endings) {
      CAPTURE(ending.words);
      CHECK((ending.kind == "mismatch" || ending.kind == "revoked"));
      CHECK(toy::says(ending.words, "call ready in the same order on every rank"));
    }
  }
}

TEST_CASE("with Reproducible the ledger counts the partial gradients of a rank's subtree") {
  constexpr std::size_t size = 32768;
  for (const int ranks : {1, 2, 4, 8})
    for (const int stage : {0, 1, 2, 3})
      toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
        CAPTURE(ranks);
        CAPTURE(stage);
        std::vector<distx::Parameter<float>> parameters;
        parameters.emplace_back("weight", size);
        const auto& weight = parameters.front();
        InTree<> training(comm, parameters, distx::SGD{}, {.stage = stage});
        const auto count = static_cast<std::size_t>(virtual_ranks / ranks);
        const std::size_t levels = count == 8 ? 3 : count / 2;
        const std::size_t own = stage < 2 ? size : size / static_cast<std::size_t>(ranks);
        const auto before = training.memory();
        CHECK(before.gradients.held == sizeof(float) * (levels * size + own));
        for (std::size_t k = 0; k < count; ++k) {
          const auto scope = training.micro_batch({.index = k, .count = count});
          training.gradient(weight)[0] = 1;
          training.ready(weight);
        }
        training.step({.learning_rate = 1});
        // Nothing else: the gradient that is filled, and what a rank receives, are in the pool.
        CHECK(training.memory().total.peak == before.total.held);
      });
}
