// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/tensor/ops/reduce.hpp>
#include <distx/tensor/ops/transpose.hpp>

#include "cases.hpp"

namespace reduce_test {

using cases::Whole;

namespace {

const Whole x = Whole::numbers({4, 3, 5}, 1, 40);

/// The middle dimension reduced by f.
template <class F>
Whole over_middle(const Whole& of, double first, F&& f) {
  Whole out({4, 5});
  for (std::size_t i = 0; i < 4; ++i)
    for (std::size_t k = 0; k < 5; ++k) {
      double value = first;
      for (std::size_t j = 0; j < 3; ++j) value = f(value, of.values[(i * 3 + j) * 5 + k]);
      out.values[i * 5 + k] = value;
    }
  return out;
}
/// f(element, number of the middle dimension's slice) of all elements.
template <class F>
Whole over_all(F&& f) {
  Whole out({4, 3, 5});
  for (std::size_t at = 0; at < 60; ++at) out.values[at] = f(at, at / 15 * 5 + at % 5);
  return out;
}

}  // namespace

TEST_CASE("reductions over a dimension equal loops in every supported layout") {
  const auto sum = over_middle(x, 0, [](double a, double b) { return a + b; });
  CHECK(cases::check<distx::rules::SumOver<1>, 3>({x}, sum, 0,
                                                  [](const auto& a) { return distx::ops::sum_over<1>(a); }) == "");
  auto mean = sum;
  for (double& value : mean.values) value /= 3;
  CHECK(cases::check<distx::rules::SumOver<1>, 3>({x}, mean, 1e-14,
                                                  [](const auto& a) { return distx::ops::mean_over<1>(a); }) == "");
  const auto most = over_middle(x, -100, [](double a, double b) { return std::max(a, b); });
  CHECK(cases::check<distx::rules::MaxOver<1>, 3>({x}, most, 0,
                                                  [](const auto& a) { return distx::ops::max_over<1>(a); }) == "");
}

TEST_CASE("reductions of the first and the last dimension, down to rank 0, equal loops") {
  const Whole vector = Whole::numbers({5}, 2);
  Whole number{std::vector<std::size_t>{}};
  for (const double value : vector.values) number.values[0] += value;
  CHECK(cases::check<distx::rules::SumOver<0>, 1>({vector}, number, 0,
                                                  [](const auto& a) { return distx::ops::sum_over<0>(a); }) == "");
  const Whole matrix = Whole::numbers({3, 4}, 3);
  Whole rows({3});
  for (std::size_t i = 0; i < 12; ++i) rows.values[i / 4] += matrix.values[i];
  CHECK(cases::check<distx::rules::SumOver<1>, 2>({matrix}, rows, 0,
                                                  [](const auto& a) { return distx::ops::sum_over<1>(a); }) == "");
}

TEST_CASE("the gradients of reductions go to the reduced elements, in every supported layout") {
  const Whole slope = Whole::numbers({4, 5}, 4);
  const auto sum = over_all([&](std::size_t, std::size_t to) { return slope.values[to]; });
  CHECK(cases::check<distx::rules::SumOverBackward<1>, 3, 2>({x, slope}, sum, 0, [](const auto& a, const auto& g) {
          return distx::ops::sum_over_backward<1>(a, g);
        }) == "");
  const auto mean = over_all([&](std::size_t, std::size_t to) { return slope.values[to] / 3; });
  CHECK(cases::check<distx::rules::SumOverBackward<1>, 3, 2>({x, slope}, mean, 1e-14, [](const auto& a, const auto& g) {
          return distx::ops::mean_over_backward<1>(a, g);
        }) == "");
  const auto most = over_middle(x, -100, [](double a, double b) { return std::max(a, b); });
  const auto max =
      over_all([&](std::size_t at, std::size_t to) { return x.values[at] == most.values[to] ? slope.values[to] : 0; });
  CHECK(cases::check<distx::rules::MaxOverBackward<1>, 3, 2, 2>({x, most, slope}, max, 0,
                                                                [](const auto& a, const auto& m, const auto& g) {
                                                                  return distx::ops::max_over_backward<1>(a, m, g);
                                                                }) == "");
}

TEST_CASE("transpose permutes the dimensions in every layout, Partial included") {
  Whole turned({5, 4, 3});
  for (std::size_t i = 0; i < 4; ++i)
    for (std::size_t j = 0; j < 3; ++j)
      for (std::size_t k = 0; k < 5; ++k) turned.values[(k * 4 + i) * 3 + j] = x.values[(i * 3 + j) * 5 + k];
  CHECK(cases::check<distx::rules::Transpose<2, 0, 1>, 3>(
            {x}, turned, 0, [](const auto& a) { return distx::ops::transpose<2, 0, 1>(a); }) == "");
}

}  // namespace reduce_test
