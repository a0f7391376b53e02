// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/tensor/ops/matmul.hpp>

#include "cases.hpp"
#include "matrices.hpp"

using cases::matrix;
using cases::Whole;
using cases::whole;

TEST_CASE("matmul equals Eigen's product in every supported layout, transposed operands included") {
  const auto x = Whole::numbers({5, 7}, 1), w = Whole::numbers({7, 3}, 2);
  const auto product = whole(matrix(x) * matrix(w), {5, 3});
  CHECK(cases::check<distx::rules::Matmul, 2, 2>(
            {x, w}, product, 0, [](const auto& a, const auto& b) { return distx::ops::matmul(a, b); }) == "");

  const auto turned_w = whole(matrix(w).transpose(), {3, 7});
  CHECK(cases::check<distx::rules::MatmulTransposed, 2, 2>({x, turned_w}, product, 0, [](const auto& a, const auto& b) {
          return distx::ops::matmul(a, distx::ops::transposed(b));
        }) == "");

  const auto turned_x = whole(matrix(x).transpose(), {7, 5});
  CHECK(cases::check<distx::rules::TransposedMatmul, 2, 2>({turned_x, w}, product, 0, [](const auto& a, const auto& b) {
          return distx::ops::matmul(distx::ops::transposed(a), b);
        }) == "");
}

TEST_CASE("eigen::product equals Eigen's product for every combination of transposed operands and results") {
  const auto x = Whole::numbers({5, 7}, 1), w = Whole::numbers({7, 3}, 2);
  for (const bool left : {false, true})
    for (const bool right : {false, true})
      for (const bool result : {false, true}) {
        const Whole a = left ? whole(matrix(x).transpose(), {7, 5}) : x;
        const Whole b = right ? whole(matrix(w).transpose(), {3, 7}) : w;
        Whole c({15});
        distx::eigen::product(distx::MatrixRef<double>{c.values, 5, 3, result},
                              distx::MatrixRef<const double>{a.values, 5, 7, left},
                              distx::MatrixRef<const double>{b.values, 7, 3, right});
        const cases::Matrix expected = matrix(x) * matrix(w);
        CHECK(c.values == (result ? whole(expected.transpose(), {15}) : whole(expected, {15})).values);
      }
  CHECK(cases::check<distx::rules::Matmul, 2, 2>(
            {x, w}, whole(matrix(x) * matrix(w), {5, 3}), 0,
            [](const auto& a, const auto& b) { return distx::ops::matmul(a, b, distx::eigen::product); }) == "");
}
