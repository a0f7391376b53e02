// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <distx/checkpoint.hpp>
#include <distx/optim/adamw.hpp>
#include <distx/optim/lamb.hpp>
#include <distx/optim/mixed.hpp>
#include <distx/optim/muon.hpp>
#include <distx/optim/sgd.hpp>
#include <distx/threads.hpp>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include <doctest/doctest.h>

// Checkpoints in `earlier_version/` that an earlier version of distx saved; its README says how they were made. That
// version computed moving averages and momentum by other formulas, which differ by their rounding.
namespace earlier_version {

namespace {

constexpr std::uint64_t saved = 3, last = 6;

/// A training of 24 weights on one rank.
class Training {
 public:
  template <class Optimizer>
  Training(distx::SerialCommunicator& comm, const Optimizer& optimizer)
      : weights_(make()), training_(comm, weights_, optimizer, {}) {}
  /// Makes the steps from `begin` on up to `last`, and calls after_step(training, number) after each.
  template <class F>
  void train(std::uint64_t begin, F&& after_step) {
    for (std::uint64_t number = begin + 1; number <= last; ++number) {
      for (const auto& parameter : weights_) {
        const auto gradient = training_.gradient(parameter);
        for (std::size_t i = 0; i < gradient.size(); ++i)
          gradient[i] = static_cast<float>((7 * i + 5 * number) % 16) / 8 - 1;
        training_.ready(parameter);
      }
      training_.step({.learning_rate = 0.01});
      after_step(training_, number);
    }
  }
  [[nodiscard]] auto& training() { return training_; }
  [[nodiscard]] std::vector<float> weights() {
    std::vector<float> all;
    for (const auto& parameter : weights_) {
      const auto values = training_.value(parameter);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

 private:
  static std::vector<distx::Parameter<float>> make() {
    const auto fill = [](distx::Span<float> values) {
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i + values.size()));
    };
    std::vector<distx::Parameter<float>> all;
    all.emplace_back("layer.weight", 20, fill, distx::ParameterOptions{.rows = 4});
    all.emplace_back("layer.bias", 4, fill);
    return all;
  }

  std::vector<distx::Parameter<float>> weights_;
  distx::DataParallel<distx::ZeRO<0>> training_;
};

/// Calls f(name, optimizer) for each optimizer with a checkpoint.
template <class F>
void for_each_optimizer(F&& f) {
  f("adamw", distx::AdamW{});
  f("sgd", distx::SGD{.momentum = 0.9, .weight_decay = 0.01});
  f("lamb", distx::LAMB{});
  f("muon", distx::Mixed<distx::Muon, distx::AdamW>{});
}

const std::filesystem::path checkpoints = std::filesystem::path(__FILE__).parent_path() / "earlier_version";

}  // namespace

TEST_CASE("a checkpoint of an earlier version loads, and training continues up to the rounding of floats") {
  distx::SelfConnector self;
  distx::SerialCommunicator comm(self);
  for_each_optimizer([&](const std::string& name, const auto& optimizer) {
    CAPTURE(name);
    Training continued(comm, optimizer), expected(comm, optimizer);
    CHECK(distx::checkpoint::load(checkpoints / name / "step-000000000003", continued.training()).step == saved);
    CHECK(distx::checkpoint::load(checkpoints / name / "step-000000000006", expected.training()).step == last);
    continued.train(saved, [](auto&, std::uint64_t) {});
    const auto actual = continued.weights(), wanted = expected.weights();
    REQUIRE(actual.size() == wanted.size());
    // Each of the 3 steps of both versions rounds a weight, by 6e-8 at most below 1, and the update.
    for (std::size_t i = 0; i < actual.size(); ++i) CHECK(std::abs(actual[i] - wanted[i]) <= 4e-7f);
  });
}

TEST_CASE("makes the checkpoints" * doctest::skip()) {
  distx::SelfConnector self;
  distx::SerialCommunicator comm(self);
  for_each_optimizer([&](const std::string& name, const auto& optimizer) {
    Training(comm, optimizer).train(0, [&](auto& training, std::uint64_t number) {
      if (number % saved == 0) distx::checkpoint::save(checkpoints / name, training, {.step = number});
    });
  });
}

}  // namespace earlier_version
