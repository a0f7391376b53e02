// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/comm/decorators/metered.hpp>
#include <distx/training.hpp>

#include "stages.hpp"

using namespace distx::literals;

namespace {

using toy::says;
using Floats = std::vector<float>;

Floats full(stages::Training& training) {
  Floats all;
  training.for_each_full_weight([&](const std::string&, distx::Span<const distx::AnyElement> values) {
    const auto* begin = static_cast<const float*>(values.data());
    all.insert(all.end(), begin, begin + values.size());
  });
  return all;
}

template <class Parameters>
void step(stages::Training& training, Parameters& parameters, std::size_t sample) {
  stages::pass(training, parameters, sample);
  training.step({.learning_rate = 0.01});
}

}  // namespace

TEST_CASE("for_each_full_weight visits all weights in the order of the list, and release keeps them") {
  for (const int ranks : {1, 3, 4})
    for (const auto& [stage, shares] : {std::pair{0, false}, {1, false}, {2, false}, {3, false}, {0, true}, {2, true}})
      toy::on_ranks(ranks, [&, stage = stage, shares = shares](distx::ThreadCommunicator& comm) {
        const auto parameters = stages::owned();
        Floats before, names_and_values;
        {
          stages::Training training(comm, parameters, distx::AdamW{},
                                    {.bucket_bytes = 4_KiB, .stage = stage, .share_weights = shares});
          for (std::size_t k = 0; k < 2; ++k) {
            step(training, parameters, k);
            before = full(training);  // between two steps, it changes nothing
          }
          std::string names;
          training.for_each_full_weight([&](const std::string& name, auto) { names += name + " "; });
          CHECK(names.substr(0, 28) == "block0.layer0 block0.layer1 ");
          CHECK(before.size() == 21125);
          training.release();
          CHECK(parameters[7].value()[6] == before.back());
        }
        Floats after;
        for (const auto& p : parameters) after.insert(after.end(), p.value().begin(), p.value().end());
        CHECK(toy::same_bits(after, before));
        // A later training continues with them.
        stages::Training again(comm, parameters, distx::AdamW{}, {.stage = 3 - stage});
        CHECK(toy::same_bits(full(again), before));
      });
}

TEST_CASE("the end of a released training does not affect a training made after it") {
  for (const int ranks : {1, 2})
    for (const int stage : {0, 2, 3})
      for (const int next : {0, 2, 3})
        for (const bool assigned : {false, true}) {
          CAPTURE(ranks);
          CAPTURE(stage);
          CAPTURE(next);
          CAPTURE(assigned);
          toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
            std::vector<distx::Parameter<float>> parameters;
            parameters.emplace_back("p", 100);
            const auto learn = [&](stages::Training& training) {
              for (auto& x : training.gradient(parameters[0])) x += 1;
              training.ready(parameters[0]);
              training.step({.learning_rate = 0.25});
              CHECK(training.memory().weights.held > 0);
            };
            const auto made = [&](int at) { return stages::Training(comm, parameters, distx::SGD{}, {.stage = at}); };
            auto first = std::make_unique<stages::Training>(made(stage));
            learn(*first);
            first->release();
            if (assigned) {
              *first = made(next);  // of the two, the released one ends last
              learn(*first);
              CHECK(full(*first) == Floats(100, -0.5f));
              return;
            }
            auto second = made(next);
            learn(second);
            first.reset();
            learn(second);
            CHECK(full(second) == Floats(100, -0.75f));
            second.release();
            CHECK(parameters[0].value()[99] == -0.75f);
          });
        }
}

TEST_CASE("calls of a released training, and release during a step, are errors") {
  const auto check = [](const std::string& words, auto&& wrong) {
    for (const auto& ending : toy::endings(2, [&](auto& comm) {
           const auto parameters = stages::owned();
           stages::Training training(comm, parameters, distx::SGD{}, {.stage = 3});
           wrong(training, parameters);
         }))
      CHECK(says(ending.words, words));
  };
  check("release() has ended this training", [](auto& training, auto& parameters) {
    training.release();
    CHECK_THROWS_AS(static_cast<void>(parameters[0].gradient()), distx::Error);
    training.ready(parameters[0]);
  });
  check("release() has ended this training", [](auto& training, auto&) {
    training.release();
    training.step({.learning_rate = 1});
  });
  check("for_each_full_weight on rank", [](auto& training, auto& parameters) {
    stages::pass(training, parameters, 0);
    static_cast<void>(full(training));
  });
  check("'block0' is still unsharded", [](auto& training, auto& parameters) {
    const auto weights = training.unshard(parameters[0]);
    training.release();
  });
  check("invalid decay 1: must be in [0, 1)", [](auto& training, auto&) { static_cast<void>(training.ema(1)); });
}

TEST_CASE("a moving average has the same bits at every stage, and swap_in restores the weights") {
  for (const int ranks : {1, 2, 3})
    for (const bool borrowed : {false, true}) {
      Floats first;
      for (const auto& [stage, shares] :
           {std::pair{0, false}, {1, false}, {2, false}, {3, false}, {0, true}, {1, true}, {2, true}}) {
        if (borrowed && (stage >= 2 || shares)) continue;
        CAPTURE(ranks);
        CAPTURE(stage);
        CAPTURE(shares);
        std::vector<Floats> averages(static_cast<std::size_t>(ranks));
        toy::on_ranks(ranks, [&, stage = stage, shares = shares](distx::ThreadCommunicator& comm) {
          auto parameters = stages::owned();
          toy::Model model;
          auto refs = model.parameters();
          stages::Training training(comm, borrowed ? distx::ParameterList<>(refs) : distx::ParameterList<>(parameters),
                                    distx::SGD{}, {.bucket_bytes = 4_KiB, .stage = stage, .share_weights = shares});
          auto average = training.ema(0.5);
          Floats expected = full(training);
          for (std::size_t k = 0; k < 3; ++k) {
            if (borrowed)
              step(training, refs, k);
            else
              step(training, parameters, k);
            average.update();
            const Floats now = full(training);
            for (std::size_t i = 0; i < now.size(); ++i) expected[i] += 0.5f * (now[i] - expected[i]);
          }
          const Floats before = full(training);
          {
            const auto scope = average.swap_in();
            averages[static_cast<std::size_t>(comm.rank())] = full(training);
          }
          CHECK(toy::same_bits(full(training), before));
          CHECK_FALSE(toy::same_bits(averages[static_cast<std::size_t>(comm.rank())], before));
          CHECK(toy::same_bits(averages[static_cast<std::size_t>(comm.rank())], expected));
        });
        if (first.empty()) first = averages.front();
        for (const auto& rank : averages) CHECK(toy::same_bits(rank, first));
      }
    }
}

TEST_CASE("gradients are refused while a moving average is swapped in, and available again after it") {
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    const auto check = [&](const char* words, auto&& wrong) {
      for (const auto& ending : toy::endings(2, [&](auto& comm) {
             const auto parameters = stages::owned();
             stages::Training training(comm, parameters, distx::SGD{}, {.stage = stage});
             auto average = training.ema(0.5);
             const auto scope = average.swap_in();
             wrong(training, parameters);
           })) {
        CAPTURE(ending.words);
        CHECK(says(ending.words, words));
      }
    };
    const char* const none = "gradients are not available inside the scopes of evaluate() and swap_in()";
    check(none, [](auto& training, auto& parameters) { training.ready(parameters[0]); });
    check(none, [](auto& training, auto& parameters) { static_cast<void>(training.gradient(parameters[0])); });
    check("a moving average is swapped in", [](auto& training, auto&) { training.release(); });
    toy::on_ranks(2, [&](distx::ThreadCommunicator& comm) {
      const auto parameters = stages::owned();
      stages::Training training(comm, parameters, distx::SGD{}, {.stage = stage});
      auto average = training.ema(0.5);
      for (std::size_t k = 0; k < 2; ++k) {
        step(training, parameters, k);
        average.update();
        auto scope = average.swap_in();
        const auto moved = std::move(scope);
      }
    });
  }
}

TEST_CASE("an evaluation has its own order of unshard while a moving average is swapped in") {
  toy::on_ranks(2, [](distx::ThreadCommunicator& comm) {
    distx::Metered<distx::ThreadCommunicator> metered(comm.share());
    const auto parameters = stages::owned();
    stages::Training training(metered, parameters, distx::SGD{}, {.stage = 3, .map_weights = false});
    auto average = training.ema(0.5);
    for (std::size_t k = 0; k < 2; ++k) step(training, parameters, k);
    const auto before = metered.ledger();
    {
      const auto averages = average.swap_in();
      const auto evaluation = training.evaluate();
      for (std::size_t p = 0; p < 3; ++p) static_cast<void>(training.unshard(parameters[p]));
    }
    // In training, the next unit would be prefetched.
    CHECK((metered.ledger() - before)["all_gather"].calls == 3);
  });
}

TEST_CASE("a model written for DataParallel runs in a LocalTraining") {
  const auto parameters = stages::owned();
  {
    distx::LocalTraining<> alone{distx::ParameterList<>(parameters)};
    for (int k = 0; k < 2; ++k) {
      stages::pass(alone, parameters, 5);
      alone.begin_step();
    }
    const float expected = parameters[2].value()[7] - static_cast<float>(toy::target(2, 7, 5));
    stages::pass(alone, parameters, 5);
    CHECK(parameters[2].gradient()[7] == expected);
    stages::pass(alone, parameters, 5);
    CHECK(parameters[2].gradient()[7] == 2 * expected);
  }
  CHECK(parameters[2].value()[7] == static_cast<float>(toy::first_weight(2, 7)));
  CHECK_THROWS_AS(static_cast<void>(parameters[2].gradient()), distx::Error);
}
