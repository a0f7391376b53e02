// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include "stages.hpp"

namespace {

template <class How>
using Accumulating = distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Accumulate<How>>;

/// The weights of every rank after two steps of three micro-batches.
template <class How>
std::vector<std::vector<float>> train(int ranks, bool borrowed, const distx::DataParallelOptions& options) {
  std::vector<std::vector<float>> all(static_cast<std::size_t>(ranks));
  toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
    auto parameters = stages::owned();
    toy::Model model;
    auto refs = model.parameters();
    Accumulating<How> training(comm, borrowed ? distx::ParameterList<>(refs) : distx::ParameterList<>(parameters),
                               distx::AdamW{}, options);
    for (std::size_t step = 0; step < 2; ++step) {
      for (std::size_t k = 0; k < 3; ++k) {
        const auto scope = training.micro_batch({.index = k, .count = 3});
        const std::size_t sample = 30 * step + 3 * static_cast<std::size_t>(comm.rank()) + k;
        if (borrowed)
          stages::pass(training, refs, sample);
        else
          stages::pass(training, parameters, sample);
      }
      training.step({.learning_rate = 0.01});
    }
    auto& mine = all[static_cast<std::size_t>(comm.rank())];
    if (borrowed) mine = model.weights();
    if (borrowed) return;
    for (const auto& parameter : parameters) {
      const auto weights = training.unshard(parameter);
      mine.insert(mine.end(), parameter.value().begin(), parameter.value().end());
    }
  });
  return all;
}

template <class How>
void check_all(const std::vector<float>& one_pass, int last_stage) {
  for (const int ranks : {1, 2, 3, 4}) {
    const auto expected = train<How>(ranks, false, {.bucket_bytes = 0, .overlap = false, .stage = 0}).front();
    if (ranks == 1)
      for (std::size_t i = 0; i < expected.size(); i += 11)
        CHECK(expected[i] == doctest::Approx(one_pass[i]).epsilon(1e-4));
    CAPTURE(ranks);
    stages::for_each_way({}, last_stage, [&](const auto& options, bool borrowed) {
      for (const auto& rank : train<How>(ranks, borrowed, options)) CHECK(toy::same_bits(rank, expected));
    });
  }
}

/// Three samples in one pass, on one rank.
std::vector<float> in_one_pass() {
  std::vector<float> weights;
  toy::on_ranks(1, [&](distx::ThreadCommunicator& comm) {
    toy::Model model;
    distx::DataParallel<> training(comm, model.parameters(), distx::AdamW{});
    for (std::size_t step = 0; step < 2; ++step) {
      for (std::size_t p = 0; p < toy::sizes.size(); ++p) {
        model.backward(p, 30 * step, 3);
        for (auto& x : model.layers[p].gradient) x *= 3;
      }
      training.ready(model.parameters());
      training.step({.learning_rate = 0.01});
    }
    weights = model.weights();
  });
  return weights;
}

}  // namespace

TEST_CASE("gradients of micro-batches add up, with Local and with Sharded accumulation") {
  check_all<distx::Local>(in_one_pass(), 1);
  check_all<distx::Sharded>(in_one_pass(), 3);
}

TEST_CASE("micro-batches out of order are errors") {
  using toy::says;
  for (const auto& ending : toy::endings(2, [](auto& comm) {
         const auto parameters = stages::owned();
         Accumulating<distx::Sharded> training(comm, parameters, distx::SGD{}, {.stage = 2});
         const auto scope = training.micro_batch({.index = 0, .count = 2});
         stages::pass(training, parameters, 0);
         training.step({.learning_rate = 1});
       }))
    CHECK(says(ending.words, "this step has had fewer micro-batches than the .count"));
  for (const auto& ending : toy::endings(2, [](auto& comm) {
         const auto parameters = stages::owned();
         Accumulating<distx::Local> training(comm, parameters, distx::SGD{}, {.stage = 1});
         static_cast<void>(training.micro_batch({.index = 0, .count = 1}));
         static_cast<void>(training.micro_batch({.index = 0, .count = 1}));
       }))
    CHECK(says(ending.words, "the last micro-batch of this step has begun; call step first"));
  const auto check = [](const std::string& kind, const std::string& words, distx::MicroBatchIndex second) {
    for (const auto& ending : toy::endings(2, [&](auto& comm) {
           const auto parameters = stages::owned();
           Accumulating<distx::Local> training(comm, parameters, distx::SGD{}, {.stage = 1});
           {
             const auto scope = training.micro_batch({.index = 0, .count = 3});
             stages::pass(training, parameters, 0);
           }
           static_cast<void>(training.micro_batch(second));
         })) {
      CAPTURE(ending.words);
      CHECK(ending.kind == kind);
      CHECK(says(ending.words, words));
    }
  };
  check("argument", "invalid .index = 3, .count = 3: the index must be below the count", {.index = 3, .count = 3});
  check("argument", "invalid .index = 0, .count = 0: the index must be below the count", {});
  check("state", ".index = 0, .count = 3 does not follow .index = 1", {.index = 0, .count = 3});
  check("state", ".index = 2, .count = 3 does not follow .index = 1", {.index = 2, .count = 3});
  check("state", "begin the micro-batches of a step in order, with the same count", {.index = 1, .count = 2});
  for (const auto& ending : toy::endings(2, [](auto& comm) {
         const auto parameters = stages::owned();
         Accumulating<distx::Local> training(comm, parameters, distx::SGD{}, {.stage = 2});
       }))
    CHECK(says(ending.words, "Accumulate<Local> needs whole gradients, which stage 2 of ZeRO shards"));
}

TEST_CASE("different numbers of micro-batches are an error on every rank, with the step and both numbers") {
  const auto check = [](int wrong_step, const std::string& words, auto&& end) {
    for (const auto& ending : toy::endings(3, [&](auto& comm) {
           const auto parameters = stages::owned();
           Accumulating<distx::Local> training(comm, parameters, distx::SGD{}, {.stage = 1});
           for (int step = 0; step < 40; ++step) {
             const std::size_t parts = comm.rank() == 1 && step == wrong_step ? 3 : 2;
             for (std::size_t part = 0; part < parts; ++part) {
               const auto micro_batch = training.micro_batch({.index = part, .count = parts});
               stages::pass(training, parameters, 0);
             }
             end(training);
           }
         })) {
      CAPTURE(ending.words);
      CHECK(ending.kind == "mismatch");
      CHECK(toy::says(ending.words, words));
    }
  };
  const auto step = [](auto& training) { training.step({.learning_rate = 0.1}); };
  check(0, "the number of micro-batches of step 0 differs: rank 0 has 2; rank 1 has 3", step);
  check(5, "the number of micro-batches of step 5 differs: rank 0 has 2; rank 1 has 3", step);
  check(5, "the number of micro-batches of step 5 differs: rank 0 has 2; rank 1 has 3", [](auto& training) {
    training.reduce_gradients();
    training.update_weights({.learning_rate = 0.1});
    training.gather_weights();
  });
}

TEST_CASE("ranks without a batch need not make micro-batches") {
  toy::on_ranks(2, [](auto& comm) {
    const auto parameters = stages::owned();
    Accumulating<distx::Local> training(comm, parameters, distx::SGD{}, {.stage = 1});
    for (int step = 0; step < 34; ++step) {
      const bool has_batch = comm.rank() == 0 || step % 2 == 0;
      CHECK(training.announce_batch(has_batch) > 0);
      for (std::size_t part = 0; has_batch && part < 2; ++part) {
        const auto micro_batch = training.micro_batch({.index = part, .count = 2});
        stages::pass(training, parameters, 0);
      }
      training.step({.learning_rate = 0.1});
    }
  });
}

TEST_CASE("a gradient that a micro-batch does not have counts once, also on one rank") {
  for (const int ranks : {1, 2})
    toy::on_ranks(ranks, [](distx::ThreadCommunicator& comm) {
      std::vector<float> sometimes(4), always(4), sometimes_gradient(4), always_gradient(4);
      std::vector parameters{distx::ref("sometimes", sometimes, sometimes_gradient),
                             distx::ref("always", always, always_gradient)};
      Accumulating<distx::Sharded> training(comm, parameters, distx::SGD{}, {.allow_unused = true, .stage = 0});
      for (std::size_t k = 0; k < 2; ++k) {
        const auto scope = training.micro_batch({.index = k, .count = 2});
        for (std::size_t p = k; p < 2; ++p) {
          const auto gradient = training.gradient(parameters[p]);
          std::fill(gradient.begin(), gradient.end(), 1.0f);
          training.ready(parameters[p]);
        }
      }
      training.step({.learning_rate = 1});
      CHECK(sometimes[3] == -1);
      CHECK(always[3] == -2);
    });
}
