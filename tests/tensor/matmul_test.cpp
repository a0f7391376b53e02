// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <distx/tensor/matmul.hpp>
#include <doctest/doctest.h>

#include "cases.hpp"
#include "matrices.hpp"

using cases::Whole;
using cases::matrix;
using cases::whole;

TEST_CASE("products of matrices are Eigen's, in every layout that their rules take") {
  const auto x = Whole::numbers({5, 7}, 1), w = Whole::numbers({7, 3}, 2);
  const auto product = whole(matrix(x) * matrix(w), {5, 3});
  CHECK(cases::check<distx::Matmul, 2, 2>({x, w}, product, 0,
                                          [](const auto& a, const auto& b) { return distx::matmul(a, b); }) == "");

  const auto turned_w = whole(matrix(w).transpose(), {3, 7});
  CHECK(cases::check<distx::MatmulTransposed, 2, 2>({x, turned_w}, product, 0, [](const auto& a, const auto& b) {
          return distx::matmul(a, distx::transposed(b));
        }) == "");

  const auto turned_x = whole(matrix(x).transpose(), {7, 5});
  CHECK(cases::check<distx::TransposedMatmul, 2, 2>({turned_x, w}, product, 0, [](const auto& a, const auto& b) {
          return distx::matmul(distx::transposed(a), b);
        }) == "");
}
