// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/tensor/ops/activations.hpp>
#include <distx/tensor/ops/arithmetic.hpp>
#include <distx/tensor/ops/bias.hpp>

#include "cases.hpp"
#include "matrices.hpp"

namespace elementwise_test {

using cases::Matrix;
using cases::matrix;
using cases::Whole;
using cases::whole;

namespace {

const Whole x = Whole::numbers({5, 7}, 1), y = Whole::numbers({5, 7}, 2), bias = Whole::numbers({7}, 3);
constexpr double rounding = 1e-14;

}  // namespace

TEST_CASE("functions of each element equal Eigen's in every supported layout") {
  CHECK(cases::check<distx::rules::Elementwise, 2>({x}, whole(matrix(x).cwiseMax(0), {5, 7}), 0,
                                                   [](const auto& a) { return distx::ops::relu(a); }) == "");
  const Matrix gelu =
      matrix(x).array() * 0.5 *
      (1 + (std::sqrt(2 / 3.14159265358979323846) * (matrix(x).array() + 0.044715 * matrix(x).array().cube())).tanh());
  CHECK(cases::check<distx::rules::Elementwise, 2>({x}, whole(gelu, {5, 7}), rounding,
                                                   [](const auto& a) { return distx::ops::gelu(a); }) == "");
  CHECK(cases::check<distx::rules::Elementwise, 2>(
            {x}, whole(matrix(x).array().exp(), {5, 7}), rounding,
            [](const auto& a) { return distx::ops::map(a, [](double v) { return std::exp(v); }); }) == "");
  const auto rounded = [](double v) {
    return static_cast<double>(static_cast<float>(distx::bfloat16(static_cast<float>(v))));
  };
  CHECK(cases::check<distx::rules::Elementwise, 2>(
            {x}, whole(matrix(x).unaryExpr(rounded), {5, 7}), 0,
            [](const auto& a) { return distx::ops::cast<double>(distx::ops::cast<distx::bfloat16>(a)); }) == "");
  CHECK(cases::check<distx::rules::LinearElementwise, 2>({x}, whole(-3 * matrix(x), {5, 7}), 0,
                                                         [](const auto& a) { return distx::ops::scale(a, -3); }) == "");
}

TEST_CASE("functions of two elements equal Eigen's in every supported layout") {
  CHECK(cases::check<distx::rules::Zip, 2, 2>(
            {x, y}, whole(matrix(x).cwiseMin(matrix(y)), {5, 7}), 0, [](const auto& a, const auto& b) {
              return distx::ops::zip(a, b, [](double v, double w) { return std::min(v, w); });
            }) == "");
  CHECK(cases::check<distx::rules::Add, 2, 2>({x, y}, whole(matrix(x) + matrix(y), {5, 7}), 0,
                                              [](const auto& a, const auto& b) { return distx::ops::add(a, b); }) ==
        "");
  CHECK(cases::check<distx::rules::Add, 2, 2>(
            {x, y}, whole(matrix(x) - matrix(y), {5, 7}), 0,
            [](const auto& a, const auto& b) { return distx::ops::subtract(a, b); }) == "");
  CHECK(cases::check<distx::rules::Multiply, 2, 2>(
            {x, y}, whole(matrix(x).cwiseProduct(matrix(y)), {5, 7}), 0,
            [](const auto& a, const auto& b) { return distx::ops::multiply(a, b); }) == "");
}

TEST_CASE("the gradients of activations equal finite differences in every supported layout") {
  const auto relu = whole((matrix(x).array() > 0).select(matrix(y), Matrix::Zero(5, 7)), {5, 7});
  CHECK(cases::check<distx::rules::ElementwiseBackward, 2, 2>(
            {x, y}, relu, 0, [](const auto& a, const auto& b) { return distx::ops::relu_backward(a, b); }) == "");
  Whole gelu({5, 7});
  for (std::size_t i = 0; i < gelu.values.size(); ++i) {
    const distx::detail::elements::Gelu<double> f;
    constexpr double h = 1e-5;
    gelu.values[i] = y.values[i] * (f(x.values[i] + h) - f(x.values[i] - h)) / (2 * h);
  }
  CHECK(cases::check<distx::rules::ElementwiseBackward, 2, 2>(
            {x, y}, gelu, 1e-8, [](const auto& a, const auto& b) { return distx::ops::gelu_backward(a, b); }) == "");
}

TEST_CASE("add_bias adds to each row, and sum_rows is its gradient, in every supported layout") {
  const Matrix sum = matrix(x).rowwise() + matrix(bias).row(0);
  CHECK(cases::check<distx::rules::AddBias, 2, 1>({x, bias}, whole(sum, {5, 7}), 0, [](const auto& a, const auto& b) {
          return distx::ops::add_bias(a, b);
        }) == "");
  CHECK(cases::check<distx::rules::SumRows, 2>({x}, whole(matrix(x).colwise().sum(), {7}), 0,
                                               [](const auto& a) { return distx::ops::sum_rows(a); }) == "");
}

}  // namespace elementwise_test
