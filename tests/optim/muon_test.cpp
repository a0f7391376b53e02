// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/optim/adamw.hpp>
#include <distx/optim/lamb.hpp>
#include <distx/optim/mixed.hpp>
#include <distx/optim/muon.hpp>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "optim/refusal.hpp"
#include "optim/update_parameter.hpp"

namespace {

static_assert(distx::MatrixOptimizer<distx::Muon>);
static_assert(!distx::MatrixOptimizer<distx::LAMB> && !distx::MatrixOptimizer<distx::AdamW>);
static_assert(!distx::NormOptimizer<distx::Muon> && !distx::ElementwiseOptimizer<distx::Muon>);
static_assert(distx::detail::DecaysWeights<distx::Mixed<distx::Muon, distx::AdamW>>);

/// A matrix of double, and what the book needs of it.
struct Matrix {
  std::size_t rows, columns;
  std::vector<double> values = std::vector<double>(rows * columns);

  double& at(std::size_t i, std::size_t j) { return values[i * columns + j]; }
  [[nodiscard]] double at(std::size_t i, std::size_t j) const { return values[i * columns + j]; }
  [[nodiscard]] Matrix transpose() const {
    Matrix result{columns, rows};
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < columns; ++j) result.at(j, i) = at(i, j);
    return result;
  }
  friend Matrix operator*(const Matrix& a, const Matrix& b) {
    Matrix result{a.rows, b.columns};
    for (std::size_t i = 0; i < a.rows; ++i)
      for (std::size_t j = 0; j < b.columns; ++j)
        for (std::size_t k = 0; k < a.columns; ++k) result.at(i, j) += a.at(i, k) * b.at(k, j);
    return result;
  }
  friend Matrix operator+(Matrix a, const Matrix& b) {
    for (std::size_t i = 0; i < a.values.size(); ++i) a.values[i] += b.values[i];
    return a;
  }
  friend Matrix operator*(double factor, Matrix a) {
    for (double& value : a.values) value *= factor;
    return a;
  }
  [[nodiscard]] double norm() const {
    double sum = 0;
    for (const double value : values) sum += value * value;
    return std::sqrt(sum);
  }
};

/// The source's iteration, as it is written there.
Matrix orthogonalized(const Matrix& u, int iterations) {
  Matrix x = (1 / u.norm()) * (u.rows > u.columns ? u.transpose() : u);
  for (int i = 0; i < iterations; ++i) {
    const Matrix a = x * x.transpose();
    x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a * a)) * x;
  }
  return u.rows > u.columns ? x.transpose() : x;
}

Matrix pseudo_random(std::size_t rows, std::size_t columns, double seed) {
  Matrix result{rows, columns};
  for (std::size_t i = 0; i < result.values.size(); ++i)
    result.values[i] = std::sin(seed + 12.9 * static_cast<double>(i) + 0.3 * static_cast<double>(i * i % 17));
  return result;
}

/// Four steps in T, and by the book; the largest difference of a weight.
template <class T>
double difference(const distx::Muon& optimizer, std::size_t rows, std::size_t columns) {
  constexpr double rate = 0.0625;
  Matrix w = pseudo_random(rows, columns, 1);
  Matrix v{rows, columns};
  std::vector<T> weight(w.values.begin(), w.values.end()), velocity(weight.size());
  for (std::uint64_t step = 1; step <= 4; ++step) {
    const Matrix g = pseudo_random(rows, columns, 10.0 * static_cast<double>(step));
    v = optimizer.momentum * v + g;
    const Matrix u = optimizer.nesterov ? g + optimizer.momentum * v : v;
    const double stretch = std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(columns)));
    w = (1 - rate * optimizer.weight_decay) * w + (-rate * stretch) * orthogonalized(u, optimizer.iterations);
    const std::vector<T> gradient(g.values.begin(), g.values.end());
    reference::update_parameter(optimizer, {.learning_rate = rate, .number = step}, distx::MatrixShape{rows, columns},
                                distx::Span<T>(weight), distx::Span<const T>(gradient), {distx::Span<T>(velocity)});
  }
  double largest = 0;
  for (std::size_t i = 0; i < weight.size(); ++i)
    largest = std::max(largest, std::abs(static_cast<double>(weight[i]) - w.values[i]));
  return largest;
}

}  // namespace

TEST_CASE("Muon matches the reference implementation") {
  for (const auto& [rows, columns] : {std::pair<std::size_t, std::size_t>{4, 4}, {5, 9}, {9, 5}, {1, 7}, {7, 1}}) {
    CAPTURE(rows);
    CAPTURE(columns);
    for (const bool nesterov : {false, true})
      for (const double decay : {0.0, 0.25}) {
        const distx::Muon optimizer{.momentum = 0.75, .nesterov = nesterov, .weight_decay = decay};
        // In double only roundings differ; each of 5 rounds may stretch an error by 3.4445, 480 times in all.
        CHECK(difference<double>(optimizer, rows, columns) < 1e-12);
        CHECK(difference<float>(optimizer, rows, columns) < 480 * 20 * 6e-8);
      }
  }
  CHECK(difference<double>({.iterations = 1}, 6, 3) < 1e-12);
  CHECK(difference<double>({.momentum = 0, .iterations = 8}, 3, 6) < 1e-12);
}

TEST_CASE("Muon: singular values are near 1 for any gradient scale") {
  for (const double size : {1e-3, 1.0, 1e3}) {
    const std::size_t n = 4;
    std::vector<double> weight(n * n), gradient(n * n), velocity(n * n);
    for (std::size_t i = 0; i < n; ++i) gradient[i * n + i] = size * (1 + static_cast<double>(i));
    reference::update_parameter(distx::Muon{}, {.learning_rate = 1}, {n, n}, distx::Span<double>(weight),
                                distx::Span<const double>(gradient), {distx::Span<double>(velocity)});
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < n; ++j) {
        if (i == j)
          CHECK(std::abs(-weight[i * n + j] - 0.95) < 0.3);
        else
          CHECK(std::abs(weight[i * n + j]) < 1e-12);
      }
  }
}

TEST_CASE("Muon: weights stay finite for the smallest and largest gradients") {
  const auto step = [](float size, bool left_over) {
    std::vector<float> weight(12), gradient(12), velocity(12);
    auto& filled = left_over ? velocity : gradient;  // by steps long ago, with no gradient since
    for (std::size_t i = 0; i < 12; ++i) filled[i] = size * static_cast<float>(std::sin(1 + i * i));
    reference::update_parameter(distx::Muon{}, {.learning_rate = 1}, {3, 4}, distx::Span<float>(weight),
                                distx::Span<const float>(gradient), {distx::Span<float>(velocity)});
    return weight;
  };
  for (const bool left_over : {false, true}) {
    CAPTURE(left_over);
    const auto usual = step(1, left_over);
    for (const float size : {1e-45f, 1e-38f, 1e-25f, 1e-20f, 1e22f, 1e25f, 1e37f}) {
      CAPTURE(size);
      const auto weight = step(size, left_over);
      for (std::size_t i = 0; i < 12; ++i) {
        if (size < 1e-30f)
          CHECK(std::abs(weight[i]) < 0.1f);  // as good as zero
        else
          CHECK(std::abs(weight[i] - usual[i]) < 1e-3f);
      }
    }
  }
}

TEST_CASE("Muon: a zero gradient changes nothing") {
  std::vector<float> weight(6, 1.0f), gradient(6), velocity(6);
  reference::update_parameter(distx::Muon{}, {.learning_rate = 1}, {2, 3}, distx::Span<float>(weight),
                              distx::Span<const float>(gradient), {distx::Span<float>(velocity)});
  CHECK(weight == std::vector<float>(6, 1.0f));
}

TEST_CASE("Muon minimizes a quadratic, also with bfloat16 weights") {
  const auto distance = [](auto zero) {
    using T = decltype(zero);
    using A = distx::accumulator_t<T>;
    const Matrix aim = pseudo_random(6, 10, 5);
    std::vector<T> weight(60), gradient(60);
    std::vector<A> velocity(60);
    double far = 0;
    for (std::uint64_t step = 1; step <= 300; ++step) {
      far = 0;
      for (std::size_t i = 0; i < 60; ++i) {
        const double off = static_cast<double>(weight[i]) - aim.values[i];
        gradient[i] = static_cast<T>(static_cast<A>(off));
        far = std::max(far, std::abs(off));
      }
      const double rate = 0.2 * std::pow(0.97, static_cast<double>(step));
      reference::update_parameter(distx::Muon{}, {.learning_rate = rate, .number = step}, {6, 10},
                                  distx::Span<T>(weight), distx::Span<const T>(gradient), {distx::Span<A>(velocity)});
    }
    return far;
  };
  CHECK(distance(0.0) < 0.01);
  CHECK(distance(0.0f) < 0.01);
  CHECK(distance(distx::bfloat16(0.0f)) < 0.05);
}

TEST_CASE("Mixed updates matrices with one optimizer and all others with the other") {
  const distx::Mixed mixed{distx::Muon{.momentum = 0.5}, distx::AdamW{.beta1 = 0.5}};
  const distx::Step step{.learning_rate = 0.125};
  using States = std::vector<std::vector<float>>;
  const auto run = [&](auto&& update) {
    std::vector<float> weight{1, 2, 3, 4, 5, 6};
    const std::vector<float> gradient{6, -5, 4, -3, 2, -1};
    States state(2, std::vector<float>(6));
    update(distx::Span<float>(weight), distx::Span<const float>(gradient), state);
    state.push_back(weight);
    return state;
  };
  const auto by_mixture = [&](std::optional<distx::MatrixShape> matrix) {
    return run([&](auto weight, auto gradient, States& state) {
      reference::update_parameter(mixed, step, matrix, weight, gradient, {state[0], state[1]});
    });
  };
  CHECK(by_mixture(distx::MatrixShape{2, 3}) == run([&](auto weight, auto gradient, States& state) {
          reference::update_parameter(mixed.matrices, step, {2, 3}, weight, gradient, {distx::Span<float>(state[0])});
        }));
  CHECK(by_mixture({}) == run([&](auto weight, auto gradient, States& state) {
          reference::update_parameter(mixed.others, step, weight, gradient, {state[0], state[1]});
        }));
}

TEST_CASE("a parameter that does not have the matrix's size throws InvalidArgument") {
  std::vector<float> weight(6), gradient(6), velocity(6);
  const auto update = [&](distx::MatrixShape shape) -> std::string {
    try {
      reference::update_parameter(distx::Muon{}, {.learning_rate = 1}, shape, distx::Span<float>(weight),
                                  distx::Span<const float>(gradient), {distx::Span<float>(velocity)});
    } catch (const distx::InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  };
  CHECK(update({2, 3}) == "accepted");
  CHECK(update({2, 4}).find("a parameter of 6 elements is no matrix of 2 x 4") != std::string::npos);
}

TEST_CASE("invalid hyperparameters of Muon throw InvalidArgument naming them, also in Mixed") {
  using optim_tests::refused;
  CHECK(refused(distx::Muon{}));  // accepted
  CHECK(refused(distx::Mixed{distx::Muon{}, distx::AdamW{}}));
  for (const double bad : {1.0, -0.1, optim_tests::inf, optim_tests::not_a_number})
    CHECK(refused(distx::Muon{.momentum = bad}, "Muon: invalid momentum"));
  for (const double bad : {-0.1, optim_tests::inf, optim_tests::not_a_number})
    CHECK(refused(distx::Muon{.weight_decay = bad}, "Muon: invalid weight_decay"));
  for (const int bad : {0, -1, 101}) CHECK(refused(distx::Muon{.iterations = bad}, "Muon: invalid iterations"));
  CHECK(refused(distx::Mixed{distx::Muon{.momentum = 2}, distx::AdamW{}}, "Muon: invalid momentum"));
  CHECK(refused(distx::Mixed{distx::Muon{}, distx::AdamW{.beta1 = 2}}, "AdamW: invalid beta1"));
}
