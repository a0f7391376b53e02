// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/memory/operations.hpp>
#include <distx/optim/adamw.hpp>
#include <distx/optim/lamb.hpp>
#include <distx/optim/muon.hpp>
#include <distx/optim/sgd.hpp>

#include <cmath>
#include <random>
#include <vector>

#include "optim/update_parameter.hpp"

namespace {

constexpr std::size_t averages = 128;
constexpr std::uint64_t average_steps = 1000;
constexpr std::size_t decaying = 8192;

/// The error of values in all steps, relative to their size.
class RelativeError {
 public:
  void add(const std::vector<float>& values, const std::vector<double>& exact) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      error_ += std::pow(static_cast<double>(values[i]) - exact[i], 2);
      size_ += exact[i] * exact[i];
    }
  }
  [[nodiscard]] double value() const { return std::sqrt(error_ / size_); }

 private:
  double error_ = 0, size_ = 0;
};

/// Calls f(step, gradients) for each step, with normally distributed gradients.
template <class F>
void with_gradients(F&& f) {
  std::mt19937_64 random(11);
  std::normal_distribution<float> normal;
  std::vector<float> gradient(averages);
  for (std::uint64_t step = 1; step <= average_steps; ++step) {
    for (float& value : gradient) value = normal(random);
    f(step, gradient);
  }
}

/// The errors of averages of the same values: computed by `update` in float, and by an interpolation that rounds once.
struct AverageErrors {
  double ours, fused;
};

template <class F>
AverageErrors average_errors(double beta, F&& update) {
  std::vector<float> average(averages), fused(averages);
  std::vector<double> exact(averages);
  RelativeError of_average, of_fused;
  const auto rest = static_cast<float>(1 - beta);
  with_gradients([&](std::uint64_t step, const std::vector<float>& values) {
    update(step, values, average);
    for (std::size_t i = 0; i < averages; ++i) {
      const float way = values[i] - fused[i];
      fused[i] = rest < 0.5f ? std::fma(rest, way, fused[i]) : std::fma(-(1 - rest), way, values[i]);
      exact[i] = beta * exact[i] + (1 - beta) * static_cast<double>(values[i]);
    }
    of_average.add(average, exact);
    of_fused.add(fused, exact);
  });
  return {of_average.value(), of_fused.value()};
}

/// The error of exp_avg_sq.
template <class Optimizer>
double square_error(const Optimizer& optimizer) {
  std::vector<float> weight(averages, 1), direction(averages), mean(averages), square(averages);
  std::vector<double> exact(averages);
  RelativeError error;
  with_gradients([&](std::uint64_t step, const std::vector<float>& gradient) {
    reference::update_parameter(optimizer, {.number = step}, distx::Span<float>(weight),
                                distx::Span<const float>(gradient),
                                {distx::Span<float>(mean), distx::Span<float>(square)});
    for (std::size_t i = 0; i < averages; ++i)
      exact[i] = optimizer.beta2 * exact[i] + (1 - optimizer.beta2) * std::pow(static_cast<double>(gradient[i]), 2);
    error.add(square, exact);
  });
  return error.value();
}

template <class Optimizer>
AverageErrors mean_errors(Optimizer optimizer, double beta) {
  optimizer.beta1 = beta;
  std::vector<float> weight(averages, 1), square(averages);
  return average_errors(beta, [&](std::uint64_t step, const std::vector<float>& gradient, std::vector<float>& mean) {
    reference::update_parameter(optimizer, {.number = step}, distx::Span<float>(weight),
                                distx::Span<const float>(gradient),
                                {distx::Span<float>(mean), distx::Span<float>(square)});
  });
}

/// The error of a velocity after `average_steps` steps.
double velocity_error(double momentum) {
  std::vector<float> weight(averages), velocity(averages);
  std::vector<double> exact(averages);
  RelativeError error;
  with_gradients([&](std::uint64_t step, const std::vector<float>& gradient) {
    distx::fused_update(distx::HostStream{}, distx::SGD{.momentum = momentum}, {.number = step},
                        distx::Span<float>(weight), distx::Span<const float>(gradient), {distx::Span<float>(velocity)});
    for (std::size_t i = 0; i < averages; ++i) exact[i] = momentum * exact[i] + static_cast<double>(gradient[i]);
    error.add(velocity, exact);
  });
  return error.value();
}

/// Returns the way that weights of one octave move in 1,000 steps, over the way that they move in exact arithmetic.
/// `update` takes a step, with its learning rate, for a weight decay of 0.01.
template <class F>
double decayed_over_exact(double decay_of_a_step, F&& update) {
  std::vector<float> weight(decaying);
  double way = 0, exact = 0;
  for (std::size_t i = 0; i < decaying; ++i) weight[i] = 1 + static_cast<float>(i) / decaying;
  const std::vector<float> first = weight;
  for (std::uint64_t step = 1; step <= 1000; ++step)
    update(distx::Step{.learning_rate = decay_of_a_step / 0.01, .number = step, .weight_decay = 0.01},
           distx::Span<float>(weight));
  for (std::size_t i = 0; i < decaying; ++i) {
    way += static_cast<double>(first[i]) - static_cast<double>(weight[i]);
    exact += static_cast<double>(first[i]) * -std::expm1(1000 * std::log1p(-decay_of_a_step));
  }
  return way / exact;
}

}  // namespace

TEST_CASE("exp_avg of floats is as accurate as a fused interpolation, up to a fifth") {
  for (const double beta : {0.0, 0.3, 0.5, 0.8, 0.9, 0.95, 0.99}) {
    CAPTURE(beta);
    const AverageErrors of_adamw = mean_errors(distx::AdamW{}, beta);
    CHECK(of_adamw.ours <= 1.2 * of_adamw.fused);
    const AverageErrors of_lamb = mean_errors(distx::LAMB{}, beta);
    CHECK(of_lamb.ours <= 1.2 * of_lamb.fused);
  }
}

TEST_CASE("exp_avg_sq of floats is accurate to 8 roundings of its values") {
  CHECK(square_error(distx::AdamW{}) < 8 * 6e-8);
  CHECK(square_error(distx::LAMB{}) < 8 * 6e-8);
  CHECK(square_error(distx::AdamW{.beta2 = 0.95}) < 8 * 6e-8);
}

TEST_CASE("a velocity of floats does not deviate by the rounding of its momentum") {
  // A sum's error grows with the square root of the number of its values; a rounded momentum's with their number.
  for (const double momentum : {0.0, 0.5, 0.9, 0.99, 0.999}) {
    CAPTURE(momentum);
    CHECK(velocity_error(momentum) < 6e-8 * std::sqrt(0.25 + 0.125 / (1 - momentum)));
  }
}

TEST_CASE("an average of float weights is as accurate as a fused interpolation, up to a fifth") {
  for (const double decay : {0.0, 0.5, 0.9, 0.99, 0.999}) {
    CAPTURE(decay);
    const AverageErrors errors =
        average_errors(decay, [&](std::uint64_t, const std::vector<float>& weights, std::vector<float>& average) {
          distx::mix(distx::HostStream{}, distx::Span<float>(average), distx::Span<const float>(weights), decay);
        });
    CHECK(errors.ours <= 1.2 * errors.fused);
  }
}

TEST_CASE_TEMPLATE("a finite gradient whose square overflows does not make a weight NaN", Optimizer, distx::AdamW,
                   distx::LAMB) {
  std::vector<float> weight{1}, mean{0}, square{0};
  for (std::uint64_t number = 1; number <= 3; ++number) {
    const std::vector<float> gradient{number == 1 ? 3e19f : 1.0f};
    reference::update_parameter(Optimizer{}, {.learning_rate = 1e-3, .number = number}, distx::Span<float>(weight),
                                distx::Span<const float>(gradient),
                                {distx::Span<float>(mean), distx::Span<float>(square)});
    CHECK(weight[0] > 0.9f);
    CHECK(weight[0] < 1.0f);
  }
}

TEST_CASE("an average that keeps nothing equals the last value") {
  std::vector<float> average{1e8f, -3, 0};
  const std::vector<float> last{0.1f, 1e-20f, -7};
  distx::mix(distx::HostStream{}, distx::Span<float>(average), distx::Span<const float>(last), 0);
  CHECK(average == last);
  std::vector<float> weight(3), mean{1e8f, -3, 0}, square(3);
  distx::fused_update(distx::HostStream{}, distx::AdamW{.beta1 = 0}, {.number = 2}, distx::Span<float>(weight),
                      distx::Span<const float>(last), {distx::Span<float>(mean), distx::Span<float>(square)});
  CHECK(mean == last);
}

TEST_CASE("float weights without gradients decay by rate times decay on average, from 1e-6 on") {
  const std::vector<float> zeros(decaying);
  const auto by = [&]<class Optimizer>(const Optimizer& optimizer, double decay) {
    std::array<std::vector<float>, 2> memory{zeros, zeros};
    std::array<distx::Span<float>, Optimizer::states> states;
    for (std::size_t s = 0; s < states.size(); ++s) states[s] = memory[s];
    return decayed_over_exact(decay, [&](const distx::Step& step, distx::Span<float> weight) {
      if constexpr (distx::ElementwiseOptimizer<Optimizer>)
        distx::fused_update(distx::HostStream{}, optimizer, step, weight, distx::Span<const float>(zeros), states);
      else  // the second pass decays the weights
        distx::fused_apply(distx::HostStream{}, optimizer, step, 1, weight, states[0]);
    });
  };
  for (const double decay : {1e-3, 2e-6, 1.1e-6, 1e-6}) {
    CAPTURE(decay);
    CHECK(by(distx::AdamW{}, decay) == doctest::Approx(1).epsilon(0.005));
    CHECK(by(distx::SGD{}, decay) == doctest::Approx(1).epsilon(0.005));
    CHECK(by(distx::Muon{}, decay) == doctest::Approx(1).epsilon(0.005));
  }
}
