// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/tensor/ops/layer_norm.hpp>
#include <distx/tensor/ops/softmax.hpp>

#include "cases.hpp"
#include "matrices.hpp"

namespace rows_test {

using cases::Matrix;
using cases::matrix;
using cases::Whole;
using cases::whole;

namespace {

const Whole x = Whole::numbers({2, 3, 5}, 1), slope = Whole::numbers({2, 3, 5}, 2), weight = Whole::numbers({5}, 3),
            bias = Whole::numbers({5}, 4);
constexpr double rounding = 1e-13, epsilon = 1e-5;

Whole softmax(const Whole& of) {
  Matrix exp = matrix(of).array().exp();
  exp.array().colwise() /= exp.rowwise().sum().array();
  return whole(exp, of.extents);
}
Whole layer_norm(const Whole& of, const Whole& gains, const Whole& biases) {
  Matrix m = matrix(of).colwise() - matrix(of).rowwise().mean();
  m.array().colwise() /= (m.rowwise().squaredNorm().array() / 5 + epsilon).sqrt();
  return whole((m.array().rowwise() * matrix(gains).row(0).array()).matrix().rowwise() + matrix(biases).row(0),
               of.extents);
}
/// The gradient of the sum of f(at) · slope with respect to `at`, by central differences.
template <class F>
Whole gradient(Whole at, F&& f) {
  Whole slopes(at.extents);
  constexpr double h = 1e-5;
  for (std::size_t i = 0; i < at.values.size(); ++i) {
    double difference = 0;
    for (const double sign : {1.0, -1.0}) {
      const double before = std::exchange(at.values[i], at.values[i] + sign * h);
      difference += sign * matrix(f(at)).cwiseProduct(matrix(slope)).sum();
      at.values[i] = before;
    }
    slopes.values[i] = difference / (2 * h);
  }
  return slopes;
}

}  // namespace

TEST_CASE("softmax equals its formula, and its gradient finite differences, in every supported layout") {
  CHECK(cases::check<distx::rules::Rowwise, 3>({x}, softmax(x), rounding,
                                               [](const auto& a) { return distx::ops::softmax(a); }) == "");
  CHECK(cases::check<distx::rules::RowwiseBackward, 3, 3>(
            {softmax(x), slope}, gradient(x, softmax), 1e-8,
            [](const auto& a, const auto& b) { return distx::ops::softmax_backward(a, b); }) == "");
}

TEST_CASE("layer_norm equals its formula, and its gradients finite differences, in every supported layout") {
  CHECK(cases::check<distx::rules::LayerNorm, 3, 1, 1>(
            {x, weight, bias}, layer_norm(x, weight, bias), rounding,
            [](const auto& a, const auto& b, const auto& c) { return distx::ops::layer_norm(a, b, c); }) == "");
  const auto of_x = gradient(x, [](const Whole& at) { return layer_norm(at, weight, bias); });
  const auto of_gain = gradient(weight, [](const Whole& at) { return layer_norm(x, at, bias); });
  const auto of_bias = gradient(bias, [](const Whole& at) { return layer_norm(x, weight, at); });
  const auto backward = [](auto part) {
    return
        [part](const auto& a, const auto& b, const auto& c) { return part(distx::ops::layer_norm_backward(a, b, c)); };
  };
  using Rule = distx::rules::LayerNormBackward;
  CHECK(cases::check<Rule, 3, 1, 3>({x, weight, slope}, of_x, 1e-7,
                                    backward([](auto all) { return std::move(all.input); })) == "");
  CHECK(cases::check<Rule, 3, 1, 3>({x, weight, slope}, of_gain, 1e-7,
                                    backward([](auto all) { return std::move(all.weight); })) == "");
  CHECK(cases::check<Rule, 3, 1, 3>({x, weight, slope}, of_bias, 1e-7,
                                    backward([](auto all) { return std::move(all.bias); })) == "");
}

}  // namespace rows_test
