// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/optim/adamw.hpp>
#include <distx/optim/lamb.hpp>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "optim/proportional.hpp"
#include "optim/refusal.hpp"
#include "optim/update_parameter.hpp"

namespace {

static_assert(distx::NormOptimizer<distx::LAMB> && distx::NormOptimizer<Proportional>);
static_assert(!distx::ElementwiseOptimizer<distx::LAMB> && !distx::NormOptimizer<distx::AdamW>);
static_assert(!distx::NormOptimizer<int>);
static_assert(distx::detail::DecaysWeights<distx::LAMB> && !distx::detail::DecaysWeights<Proportional>);

constexpr std::size_t lamb_elements = 67;
constexpr int lamb_steps = 10;

double lamb_weight_at(std::size_t i) { return 1 + 0.01 * static_cast<double>(i); }
double lamb_gradient_at(std::size_t i, int step) {
  return 0.5 + 0.9 * std::abs(std::sin(0.7 * static_cast<double>(i) + 1.3 * step));
}

template <class T>
std::vector<T> train(const distx::LAMB& optimizer, double rate, std::optional<double> decay = {}) {
  std::vector<T> weight(lamb_elements), gradient(lamb_elements), mean(lamb_elements), square(lamb_elements);
  for (std::size_t i = 0; i < lamb_elements; ++i) weight[i] = static_cast<T>(lamb_weight_at(i));
  for (int step = 1; step <= lamb_steps; ++step) {
    for (std::size_t i = 0; i < lamb_elements; ++i) gradient[i] = static_cast<T>(lamb_gradient_at(i, step));
    reference::update_parameter(optimizer, {rate, static_cast<std::uint64_t>(step), decay}, distx::Span<T>(weight),
                                distx::Span<const T>(gradient), {distx::Span<T>(mean), distx::Span<T>(square)});
  }
  return weight;
}

/// The same by the paper, in long double, from numbers rounded to T.
template <class T>
std::vector<long double> by_the_paper(const distx::LAMB& o, double rate, double decay) {
  std::vector<long double> w(lamb_elements), m(lamb_elements), v(lamb_elements), u(lamb_elements);
  for (std::size_t i = 0; i < lamb_elements; ++i) w[i] = static_cast<T>(lamb_weight_at(i));
  long double power1 = 1, power2 = 1;
  for (int step = 1; step <= lamb_steps; ++step) {
    power1 *= o.beta1;
    power2 *= o.beta2;
    long double weights = 0, directions = 0;
    for (std::size_t i = 0; i < lamb_elements; ++i) {
      const long double g = static_cast<T>(lamb_gradient_at(i, step));
      m[i] = o.beta1 * m[i] + (1 - static_cast<long double>(o.beta1)) * g;
      v[i] = o.beta2 * v[i] + (1 - static_cast<long double>(o.beta2)) * g * g;
      u[i] = (m[i] / (1 - power1)) / (std::sqrt(v[i] / (1 - power2)) + o.epsilon) + decay * w[i];
      weights += w[i] * w[i];
      directions += u[i] * u[i];
    }
    for (std::size_t i = 0; i < lamb_elements; ++i) w[i] -= rate * std::sqrt(weights / directions) * u[i];
  }
  return w;
}

template <class T>
void check(const distx::LAMB& optimizer, std::optional<double> group_decay = {}) {
  constexpr double rate = 0.03125;
  const auto weights = train<T>(optimizer, rate, group_decay);
  const auto expected = by_the_paper<T>(optimizer, rate, group_decay.value_or(optimizer.weight_decay));
  // A step rounds a weight below 2 a few times, and adds rate * |w| / |u| * u, below 0.15 here, whose relative error is
  // that of states that have seen 3 roundings in each step so far.
  const double bound = (4 * lamb_steps * 2.0 + (4 * lamb_steps + 16) * 0.15 * lamb_steps) *
                       static_cast<double>(std::numeric_limits<T>::epsilon()) / 2;
  for (std::size_t i = 0; i < lamb_elements; ++i) {
    CAPTURE(i);
    CHECK(std::abs(static_cast<long double>(weights[i]) - expected[i]) <= bound);
  }
}

}  // namespace

TEST_CASE("LAMB matches the reference implementation") {
  check<float>({});
  check<double>({});
  check<double>({.beta1 = 0.5, .beta2 = 0.75, .epsilon = 1e-3, .weight_decay = 0.25});
  check<float>({.weight_decay = 0.25}, 0.0);
  check<double>({.weight_decay = 0.0}, 0.125);
}

TEST_CASE("LAMB: a step has the norm learning rate times the parameter's norm, for any gradient scale") {
  for (const double size : {1e-3, 1.0, 1e3}) {
    std::vector<double> weight{3, 4}, gradient{size, -size}, mean(2), square(2);
    reference::update_parameter(distx::LAMB{.epsilon = 1e-30, .weight_decay = 0}, {.learning_rate = 0.125},
                                distx::Span<double>(weight), distx::Span<const double>(gradient),
                                {distx::Span<double>(mean), distx::Span<double>(square)});
    CHECK(weight[0] == doctest::Approx(3 - 0.125 * 5 * std::sqrt(0.5)).epsilon(1e-14));
    CHECK(weight[1] == doctest::Approx(4 + 0.125 * 5 * std::sqrt(0.5)).epsilon(1e-14));
  }
}

TEST_CASE("LAMB: a norm of zero gives a trust ratio of 1") {
  CHECK(distx::LAMB::trust(0, 2) == 1);
  CHECK(distx::LAMB::trust(2, 0) == 1);
  CHECK(distx::LAMB::trust(3, 2) == 1.5);
}

TEST_CASE_TEMPLATE("both passes give the same bits for any partitioning, also in place", T, float, distx::bfloat16) {
  using A = distx::accumulator_t<T>;
  const std::size_t n = 133;
  const auto train_in_pieces = [&](std::size_t cut) {
    std::vector<T> weight(n), gradient(n);
    std::vector<A> mean(n), square(n), direction(n);
    for (std::size_t i = 0; i < n; ++i) {
      weight[i] = static_cast<T>(static_cast<float>(lamb_weight_at(i)));
      gradient[i] = static_cast<T>(static_cast<float>(lamb_gradient_at(i, 1)));
    }
    const std::size_t ends[] = {0, cut, n};
    for (std::size_t p = 0; p < 2; ++p) {
      const std::size_t begin = ends[p];
      const std::size_t count = ends[p + 1] - begin;
      distx::Span<A> towards{direction.data() + begin, count};
      if constexpr (std::same_as<T, A>)
        if (cut % 2 == 1) towards = {gradient.data() + begin, count};
      const distx::Span<T> piece{weight.data() + begin, count};
      distx::fused_direction(
          distx::HostStream{}, distx::LAMB{}, {.learning_rate = 0.01}, piece,
          distx::Span<const T>(gradient.data() + begin, count), towards,
          {distx::Span<A>(mean.data() + begin, count), distx::Span<A>(square.data() + begin, count)});
      distx::fused_apply(distx::HostStream{}, distx::LAMB{}, {.learning_rate = 0.01}, 1.7, piece, towards);
    }
    return weight;
  };
  const auto whole = train_in_pieces(n);
  for (std::size_t cut = 0; cut < n; ++cut)
    CHECK(std::memcmp(train_in_pieces(cut).data(), whole.data(), n * sizeof(T)) == 0);
}

TEST_CASE("LAMB and a custom NormOptimizer minimize a quadratic") {
  const auto distance = [](const auto& optimizer) {
    std::vector<double> weight(40), gradient(40);
    std::array<std::vector<double>, 2> state{std::vector<double>(40), std::vector<double>(40)};
    std::array<distx::Span<double>, std::remove_cvref_t<decltype(optimizer)>::states> spans;
    for (std::size_t s = 0; s < spans.size(); ++s) spans[s] = state[s];
    for (std::size_t i = 0; i < 40; ++i) weight[i] = 1 + std::cos(static_cast<double>(i));
    double far = 0;
    for (std::uint64_t step = 1; step <= 400; ++step) {
      far = 0;
      for (std::size_t i = 0; i < 40; ++i) {
        const double off = weight[i] - (1 + 0.5 * std::sin(static_cast<double>(i)));
        gradient[i] = off * (1 + static_cast<double>(i % 5));
        far += off * off;
      }
      const double rate = 0.1 * std::pow(0.98, static_cast<double>(step));
      reference::update_parameter(optimizer, {.learning_rate = rate, .number = step}, distx::Span<double>(weight),
                                  distx::Span<const double>(gradient), spans);
    }
    return std::sqrt(far);
  };
  CHECK(distance(distx::LAMB{.weight_decay = 0}) < 0.01);
  CHECK(distance(Proportional{}) < 0.01);
}

TEST_CASE("invalid hyperparameters of LAMB throw InvalidArgument naming them") {
  using optim_tests::refused;
  CHECK(refused(distx::LAMB{}));  // accepted
  for (const double bad : {1.0, -0.1, optim_tests::inf, optim_tests::not_a_number}) {
    CHECK(refused(distx::LAMB{.beta1 = bad}, "LAMB: invalid beta1"));
    CHECK(refused(distx::LAMB{.beta2 = bad}, "LAMB: invalid beta2"));
  }
  for (const double bad : {-0.1, optim_tests::inf, optim_tests::not_a_number}) {
    CHECK(refused(distx::LAMB{.epsilon = bad}, "LAMB: invalid epsilon"));
    CHECK(refused(distx::LAMB{.weight_decay = bad}, "LAMB: invalid weight_decay"));
  }
  CHECK(refused(distx::LAMB{.epsilon = 0}, "above 0"));
}
