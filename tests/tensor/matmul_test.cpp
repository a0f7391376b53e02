// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <distx/eigen.hpp>
#include <distx/tensor/elementwise.hpp>
#include <distx/tensor/matmul.hpp>
#include <doctest/doctest.h>

#include "cases.hpp"

namespace {

using cases::Whole;
using Matrix = distx::eigen::RowMajor<double>;

Eigen::Map<const Matrix> matrix(const Whole& x) {
  const auto columns = static_cast<Eigen::Index>(x.extents.back());
  return {x.values.data(), static_cast<Eigen::Index>(x.values.size()) / columns, columns};
}
Whole whole(const Matrix& m, std::vector<std::size_t> extents) {
  Whole x(std::move(extents));
  x.values.assign(m.data(), m.data() + m.size());
  return x;
}

}  // namespace

TEST_CASE("a product of matrices is Eigen's, in every layout that its rule takes") {
  const auto x = Whole::numbers({5, 7}, 1), w = Whole::numbers({7, 3}, 2);
  CHECK(cases::check<distx::Matmul, 2, 2>({x, w}, whole(matrix(x) * matrix(w), {5, 3}), 0,
                                          [](const auto& a, const auto& b) { return distx::matmul(a, b); }) == "");
}

TEST_CASE("relu is Eigen's, in every layout that its rule takes") {
  const auto x = Whole::numbers({5, 7}, 3);
  CHECK(cases::check<distx::Elementwise, 2>({x}, whole(matrix(x).cwiseMax(0), {5, 7}), 0,
                                            [](const auto& a) { return distx::relu(a); }) == "");
}
