// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/optim/adamw.hpp>
#include <distx/optim/fused_update.hpp>
#include <distx/optim/sgd.hpp>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace {

constexpr std::size_t elements = 131;  // two blocks and three
constexpr int steps = 12;

// Gradients of one sign for each element, so that no sum cancels and relative rounding errors add up at most.
double gradient_at(std::size_t i, int step) {
  const double size = 0.5 + 0.9 * std::abs(std::sin(0.7 * static_cast<double>(i) + 1.3 * step));
  return i % 3 == 0 ? -size : size;
}
double weight_at(std::size_t i) { return i % 3 == 0 ? 1 + 0.001 * static_cast<double>(i) : -1; }

/// The weights after `steps` updates, in T.
template <class T, class Optimizer>
std::vector<T> train(const Optimizer& optimizer, double rate, std::optional<double> decay = {}) {
  std::vector<T> weight(elements);
  std::vector<T> gradient(elements);
  std::array<std::vector<T>, Optimizer::states> state;
  std::array<distx::Span<T>, Optimizer::states> spans;
  for (std::size_t s = 0; s < state.size(); ++s) {
    state[s].resize(elements);
    spans[s] = state[s];
  }
  for (std::size_t i = 0; i < elements; ++i) weight[i] = static_cast<T>(weight_at(i));
  for (int step = 1; step <= steps; ++step) {
    for (std::size_t i = 0; i < elements; ++i) gradient[i] = static_cast<T>(gradient_at(i, step));
    distx::fused_update(distx::HostStream{}, optimizer, {rate, static_cast<std::uint64_t>(step), decay},
                        distx::Span<T>(weight), distx::Span<const T>(gradient), spans);
  }
  return weight;
}

/// The same by the book, in long double, one element after another.
long double sgd_by_the_book(std::size_t i, double rate, double momentum, bool nesterov, double decay, auto round) {
  long double w = round(weight_at(i));
  long double v = 0;
  for (int step = 1; step <= steps; ++step) {
    const long double g = static_cast<long double>(round(gradient_at(i, step))) + decay * w;
    v = momentum * v + g;
    w -= rate * (nesterov ? g + momentum * v : v);
  }
  return w;
}

long double adamw_by_the_book(std::size_t i, const distx::AdamW& o, double rate, double decay, auto round) {
  long double w = round(weight_at(i));
  long double m = 0;
  long double v = 0;
  long double power1 = 1;
  long double power2 = 1;
  for (int step = 1; step <= steps; ++step) {
    const long double g = round(gradient_at(i, step));
    m = o.beta1 * m + (1 - static_cast<long double>(o.beta1)) * g;
    v = o.beta2 * v + (1 - static_cast<long double>(o.beta2)) * g * g;
    power1 *= o.beta1;
    power2 *= o.beta2;
    w = w - rate * decay * w - rate * (m / (1 - power1)) / (std::sqrt(v / (1 - power2)) + o.epsilon);
  }
  return w;
}

// Rounding, at most. One step rounds the weight a few times (weights stay below 8) and adds a step whose own relative
// error is below (4 steps + 12) roundings: those of its state, which has seen 3 roundings in each step so far, and of
// the coefficients. `reach` bounds the size of all steps together.
template <class T>
double bound(double reach) {
  return (4 * steps * 8.0 + (4 * steps + 12) * reach) * static_cast<double>(std::numeric_limits<T>::epsilon()) / 2;
}

template <class T>
void check_sgd(double momentum, bool nesterov, double decay) {
  constexpr double rate = 0.0625;
  const auto weights = train<T>(distx::SGD{.momentum = momentum, .nesterov = nesterov, .weight_decay = decay}, rate);
  // All velocities together: `steps` gradients of at most 1.4 + decay * 8, each seen 1 / (1 - momentum) times.
  const double reach = rate * steps * (1.4 + decay * 8) / (1 - momentum) * 2;
  for (std::size_t i = 0; i < elements; ++i) {
    const auto expected =
        sgd_by_the_book(i, rate, momentum, nesterov, decay, [](double x) { return static_cast<T>(x); });
    INFO("element " << i);
    CHECK(std::abs(static_cast<long double>(weights[i]) - expected) <= bound<T>(reach));
  }
}

template <class T>
void check_adamw(const distx::AdamW& optimizer, std::optional<double> group_decay = {}) {
  constexpr double rate = 0.03125;
  const double decay = group_decay.value_or(optimizer.weight_decay);
  const auto weights = train<T>(optimizer, rate, group_decay);
  const double reach = rate * steps * 2;  // a step of Adam is at most twice the rate here
  for (std::size_t i = 0; i < elements; ++i) {
    const auto expected = adamw_by_the_book(i, optimizer, rate, decay, [](double x) { return static_cast<T>(x); });
    INFO("element " << i);
    CHECK(std::abs(static_cast<long double>(weights[i]) - expected) <= bound<T>(reach));
  }
}

template <class Optimizer>
std::string refusal(const Optimizer& optimizer) {
  try {
    distx::detail::validate_optimizer(optimizer);
  } catch (const distx::Error& error) {
    return error.what();
  }
  return "accepted";
}

bool says(const std::string& sentence, const std::string& words) { return sentence.find(words) != std::string::npos; }

constexpr double inf = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TEST_CASE("SGD matches the reference implementation") {
  for (const double momentum : {0.0, 0.5, 0.9})
    for (const bool nesterov : {false, true})
      for (const double decay : {0.0, 0.01}) {
        if (nesterov && momentum == 0) continue;
        CAPTURE(momentum);
        CAPTURE(nesterov);
        CAPTURE(decay);
        check_sgd<float>(momentum, nesterov, decay);
        check_sgd<double>(momentum, nesterov, decay);
      }
}

TEST_CASE("AdamW matches the reference implementation") {
  check_adamw<float>({});
  check_adamw<double>({});
  check_adamw<float>({.beta1 = 0.5, .beta2 = 0.75, .epsilon = 1e-3, .weight_decay = 0.25});
  check_adamw<double>({.beta1 = 0.5, .beta2 = 0.75, .epsilon = 1e-3, .weight_decay = 0.25});
}

TEST_CASE("AdamW: a group's weight decay overrides the optimizer's") {
  check_adamw<double>({.weight_decay = 0.25}, 0.0);
  check_adamw<double>({.weight_decay = 0.0}, 0.125);
}

TEST_CASE("AdamW: the first step has the size of the learning rate for any gradient scale") {
  for (const double size : {1e-3, 1.0, 1e3}) {
    std::array<double, 1> weight{0.0};
    const std::array<double, 1> gradient{size};
    std::array<double, 1> mean{};
    std::array<double, 1> square{};
    distx::fused_update(distx::HostStream{}, distx::AdamW{.epsilon = 1e-30, .weight_decay = 0}, {.learning_rate = 0.25},
                        distx::Span<double>(weight), distx::Span<const double>(gradient),
                        {distx::Span<double>(mean), distx::Span<double>(square)});
    CHECK(weight[0] == doctest::Approx(-0.25).epsilon(1e-14));
  }
}

TEST_CASE("invalid hyperparameters throw InvalidArgument naming them") {
  CHECK(refusal(distx::SGD{}) == "accepted");
  CHECK(refusal(distx::SGD{.momentum = 0.9, .nesterov = true, .weight_decay = 1e-4}) == "accepted");
  for (const double bad : {1.0, -0.1, inf, not_a_number}) {
    CHECK(says(refusal(distx::SGD{.momentum = bad}), "SGD: invalid momentum"));
    CHECK(says(refusal(distx::AdamW{.beta1 = bad}), "AdamW: invalid beta1"));
    CHECK(says(refusal(distx::AdamW{.beta2 = bad}), "AdamW: invalid beta2"));
  }
  for (const double bad : {-0.1, inf, -inf, not_a_number}) {
    CHECK(says(refusal(distx::SGD{.weight_decay = bad}), "SGD: invalid weight_decay"));
    CHECK(says(refusal(distx::AdamW{.weight_decay = bad}), "AdamW: invalid weight_decay"));
    CHECK(says(refusal(distx::AdamW{.epsilon = bad}), "AdamW: invalid epsilon"));
  }
  CHECK(says(refusal(distx::AdamW{.epsilon = 0}), "above 0"));
  CHECK(says(refusal(distx::SGD{.nesterov = true}), "set momentum"));
  CHECK(refusal(distx::AdamW{}) == "accepted");
}
