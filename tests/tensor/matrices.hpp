// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <distx/eigen.hpp>

#include "cases.hpp"

// Between the tests' tensors and Eigen's matrices.
namespace cases {

using Matrix = distx::eigen::RowMajor<double>;

/// All dimensions but the last as rows.
inline Eigen::Map<const Matrix> matrix(const Whole& x) {
  const auto columns = static_cast<Eigen::Index>(x.extents.back());
  return {x.values.data(), static_cast<Eigen::Index>(x.values.size()) / columns, columns};
}
inline Whole whole(const Matrix& m, std::vector<std::size_t> extents) {
  Whole x(std::move(extents));
  x.values.assign(m.data(), m.data() + m.size());
  return x;
}

}  // namespace cases
