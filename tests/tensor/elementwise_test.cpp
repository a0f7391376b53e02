// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/tensor/make_tensor.hpp>
#include <distx/tensor/ops/activations.hpp>
#include <distx/tensor/ops/arithmetic.hpp>
#include <distx/tensor/ops/bias.hpp>
#include <distx/tensor/ops/dropout.hpp>

#include <cmath>
#include <vector>

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

// The known answers of Random123 1.14 for philox4x32-10.
using Words = std::array<std::uint32_t, 4>;
static_assert(distx::detail::philox({}, {}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
static_assert(distx::detail::philox({~0U, ~0U, ~0U, ~0U}, {~0U, ~0U}) ==
              Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
static_assert(distx::detail::philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
              Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});

TEST_CASE("dropout sets the same elements to zero in every supported layout") {
  constexpr distx::ops::DropoutKey key{.seed = 0x123456789abcdef0, .number = 5};
  Matrix dropped = matrix(x) / 0.75;
  int zeros = 0;
  for (std::uint32_t i = 0; i < 35; ++i)
    if (distx::detail::philox({i / 4, 0, 5, 0}, {0x9abcdef0, 0x12345678})[i % 4] < 0x40000000)
      dropped(i / 7, i % 7) = 0, ++zeros;
  REQUIRE(zeros > 0);
  REQUIRE(zeros < 35);
  CHECK(cases::check<distx::rules::LinearElementwise, 2>({x}, whole(dropped, {5, 7}), rounding, [&](const auto& a) {
          return distx::ops::dropout(a, 0.25, key);
        }) == "");
}

TEST_CASE("dropout drops its share of the elements, others for another number, and none at rate 0") {
  distx::SelfConnector self;
  distx::SerialCommunicator comm(self);
  struct All {};
  const distx::Mesh<All> mesh(comm, {1});
  const auto ones = distx::full<float>(mesh, distx::Extents<3>{50, 40, 50}, 1);
  const auto zeros = [](const auto& dropped) { return std::ranges::count(dropped.local(), 0.0F); };
  const auto first = distx::ops::dropout(ones, 0.1, {.seed = 1}), second = distx::ops::dropout(ones, 0.1, {1, 1});
  CHECK(zeros(first) == doctest::Approx(10000).epsilon(0.04));  // more than 4 standard deviations
  CHECK(zeros(distx::ops::multiply(first, second)) == doctest::Approx(19000).epsilon(0.03));
  CHECK(zeros(distx::ops::dropout(ones, 0, {})) == 0);
  CHECK_THROWS_AS((void)distx::ops::dropout(ones, 1, {}), distx::InvalidArgument);
  CHECK_THROWS_AS((void)distx::ops::dropout(ones, std::nan(""), {}), distx::InvalidArgument);
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

TEST_CASE("gelu and its gradient are rounded once from double, and 0 and 1 far from 0") {
  const distx::detail::elements::Gelu<double> gelu;
  const distx::detail::elements::GeluBackward<double> backward;
  std::vector<float> points, ones, values, slopes;
  for (float point = -9; point < 9; point += 0.01F) points.push_back(point);
  for (const float far : {-1e30F, -40.0F, 40.0F}) points.push_back(far);
  ones.assign(points.size(), 1);
  values = slopes = points;
  using distx::detail::for_elements;
  for_elements(distx::HostStream{}, distx::detail::elements::Gelu<float>(), distx::Span<float>(values),
               distx::Span<const float>(points));
  for_elements(distx::HostStream{}, distx::detail::elements::GeluBackward<float>(), distx::Span<float>(slopes),
               distx::Span<const float>(points), distx::Span<const float>(ones));
  for (std::size_t i = 0; i + 3 < points.size(); ++i) {
    CAPTURE(points[i]);
    const double at = points[i], value = gelu(at), slope = backward(at, 1.0);
    CHECK(std::abs(values[i] - value) <= 6.1e-8 * std::abs(value));
    CHECK(std::abs(slopes[i] - slope) <= 6.1e-8 * std::abs(slope) + 1e-9);
  }
  CHECK(std::vector(values.end() - 3, values.end()) == std::vector{0.0F, 0.0F, 40.0F});
  CHECK(std::vector(slopes.end() - 3, slopes.end()) == std::vector{0.0F, 0.0F, 1.0F});
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
