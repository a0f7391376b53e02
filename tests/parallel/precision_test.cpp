// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include "stages.hpp"

using namespace distx::literals;

namespace precision_test {

namespace {

using distx::bfloat16;
using distx::float16;
using toy::says;

constexpr std::size_t sizes[] = {17, 1, 3000, 64};

template <class T>
std::vector<distx::Parameter<T>> model() {
  std::vector<distx::Parameter<T>> parameters;
  for (std::size_t p = 0; p < 4; ++p)
    parameters.emplace_back("p" + std::to_string(p), sizes[p], [p](distx::Span<T> values) {
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(float(toy::first_weight(p, i)));
    });
  return parameters;
}

/// The weights, as floats, after some steps at a rate at which one step alone rounds to nothing in short weights.
template <class T, class Wire>
std::vector<float> train(distx::ThreadCommunicator& comm, const distx::DataParallelOptions& options,
                         std::size_t steps = 20) {
  const auto parameters = model<T>();
  distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Precision<Wire>> training(comm, parameters, distx::SGD{},
                                                                                    options);
  for (std::size_t step = 0; step < steps; ++step) {
    for (std::size_t p = 4; p-- > 0;) {
      const auto gradient = training.gradient(parameters[p]);
      for (std::size_t i = 0; i < gradient.size(); ++i)
        gradient[i] = static_cast<T>(static_cast<float>((i % 3 + 1) * static_cast<std::size_t>(comm.rank() + 1)) *
                                     static_cast<float>(training.loss_scale()));
      training.ready(parameters[p]);
    }
    training.step({.learning_rate = 1e-4});
  }
  std::vector<float> all;
  const auto weights = training.unshard(parameters);
  for (const auto& p : parameters)
    for (const auto x : p.value()) all.push_back(static_cast<float>(x));
  return all;
}

template <class T, class Wire>
void check(const distx::DataParallelOptions& given = {}) {
  for (const int ranks : {1, 2, 3, 4})
    for (const int stage : {0, 1, 2, 3})
      for (const std::size_t bytes : {0_KiB, distx::unlimited}) {
        CAPTURE(ranks);
        CAPTURE(stage);
        toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
          auto options = given;
          options.stage = stage;
          options.bucket_bytes = bytes;
          const auto all = train<T, Wire>(comm, options);
          // Every step of the master weights counts: the sum of all is far above the last bit of a weight.
          std::size_t at = 0;
          for (std::size_t p = 0; p < 4; ++p)
            for (std::size_t i = 0; i < sizes[p]; ++i, ++at) {
              const float mean = static_cast<float>(i % 3 + 1) * static_cast<float>(ranks + 1) / 2;
              const float expected = static_cast<float>(T(float(toy::first_weight(p, i)))) - 20 * 1e-4f * mean;
              if (std::abs(all[at] - expected) > std::abs(expected) / 250 + 1e-6f) {
                CAPTURE(p);
                CAPTURE(i);
                CHECK(all[at] == expected);
                return;
              }
            }
        });
      }
}

}  // namespace

TEST_CASE("16-bit weights equal the rounded master weights") {
  check<bfloat16, bfloat16>();
  check<bfloat16, float>();
  check<float16, float16>({.loss_scale = 1});
  check<float16, float16>({.loss_scale = 1024});
  check<float16, float>({.loss_scale = 64});
}

TEST_CASE("bytes held with 16-bit weights equal the formula plus uneven lines") {
  constexpr std::size_t psi = 64 * 1000;
  for (const int ranks : {1, 2, 3, 4, 7, 8})
    for (const int stage : {0, 1, 2, 3}) {
      std::vector<distx::observe::MemoryLedger> all(static_cast<std::size_t>(ranks));
      toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
        std::vector<distx::Parameter<bfloat16>> parameters;
        parameters.emplace_back("p", psi);
        distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Precision<bfloat16>> training(
            comm, parameters, distx::AdamW{}, {.stage = stage});
        all[static_cast<std::size_t>(comm.rank())] = training.memory();
      });
      for (const auto& memory : all) {
        CAPTURE(ranks);
        CAPTURE(stage);
        const auto check = [&](std::size_t held, std::size_t bytes_each, bool shared) {
          const std::size_t share = shared ? psi / static_cast<std::size_t>(ranks) : psi;
          CHECK(held + 32 * bytes_each >= share * bytes_each);  // a line of weights is 32 of them
          CHECK(held <= (share + 32) * bytes_each);
        };
        check(memory.weights.held, 2, stage == 3);
        check(memory.gradients.held, 2, stage >= 2);
        check(memory.optimizer.held, 12, stage >= 1);
      }
    }
}

TEST_CASE("a step whose scaled gradients overflow on one rank is skipped on all ranks") {
  for (const int stage : {0, 1, 2, 3})
    toy::on_ranks(3, [&](distx::ThreadCommunicator& comm) {
      const auto parameters = model<float16>();
      distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Precision<float16>> training(
          comm, parameters, distx::SGD{}, {.stage = stage, .loss_scale = 1024});
      const auto step = [&](float gradient) {
        for (std::size_t p = 4; p-- > 0;) {
          training.gradient(parameters[p])[0] = static_cast<float16>(gradient);
          training.ready(parameters[p]);
        }
        training.step({.learning_rate = 0.5, .loss = gradient});
      };
      const auto first = [&] {
        const auto weights = training.unshard(parameters[1]);
        return static_cast<float>(parameters[1].value()[0]);
      };
      const float before = first();
      step(comm.rank() == 1 ? std::numeric_limits<float>::infinity() : 1);
      CHECK(first() == before);
      CHECK(training.skipped_steps() == 1);
      CHECK(training.loss_scale() == 512);
      step(512);
      CHECK(first() == doctest::Approx(before - 0.5f).epsilon(1e-3));
      CHECK(training.skipped_steps() == 1);
    });
}

TEST_CASE("a loss that is not finite is an error without loss scaling") {
  for (const auto& ending : toy::endings(2, [](auto& comm) {
         const auto parameters = stages::owned();
         distx::DataParallel<> training(comm, parameters, distx::SGD{});
         stages::pass(training, parameters, 0);
         training.step({.learning_rate = 1, .loss = std::numeric_limits<double>::quiet_NaN()});
       }))
    CHECK(says(ending.words, "is nan; lower the learning rate"));
}

TEST_CASE("Precision and .loss_scale without a parameter that they apply to are errors") {
  using Short = distx::DataParallel<distx::Precision<bfloat16>>;
  const auto check = [](const char* words, auto&& make) {
    for (const auto& ending : toy::endings(2, make)) {
      CAPTURE(ending.words);
      CHECK((ending.kind == "argument" || ending.kind == "revoked"));
      CHECK(says(ending.words, words));
    }
  };
  check("Precision has no effect",
        [](auto& comm) { Short(comm, distx::ParameterList<>(stages::owned()), distx::SGD{}); });
  const auto loss_scale = [](auto training, auto&& add) {
    return [add](auto& comm) {
      distx::ParameterList<> list;
      add(list);
      typename decltype(training)::type(comm, list, distx::SGD{}, {.loss_scale = 8});
    };
  };
  const char* const words = ".loss_scale has no effect";
  const auto of = [](auto value, bool trainable) {
    return [=](distx::ParameterList<>& list) {
      list.add(distx::Parameter<std::remove_const_t<decltype(value)>>("w", 4, {.trainable = trainable}));
      list.add(distx::Parameter<bfloat16>("v", 4));
    };
  };
  check(words, loss_scale(std::type_identity<distx::DataParallel<>>{}, of(float16{}, true)));
  check(words, loss_scale(std::type_identity<Short>{}, of(1.0f, true)));
  check(words, loss_scale(std::type_identity<Short>{}, of(float16{}, false)));
  toy::on_ranks(2, [&](auto& comm) { loss_scale(std::type_identity<Short>{}, of(float16{}, true))(comm); });
}

}  // namespace precision_test
