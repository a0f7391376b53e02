// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <Eigen/Core>

#include "distx/memory/local_matmul.hpp"

namespace distx::inline DISTX_ABI::eigen {

/// Multiplies matrices by Eigen, on the host's memory, for Eigen's scalar types. @see product
struct EigenProduct {
  template <class T>
  void operator()(MatrixRef<T> out, MatrixRef<const T> left, MatrixRef<const T> right) const {
    if (out.transposed) {
      (*this)(out.transpose(), right.transpose(), left.transpose());
      return;
    }
    with(left, [&](auto a) {
      with(right, [&](auto b) {
        Eigen::Map<Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>(
            out.values.data(), static_cast<Eigen::Index>(out.rows), static_cast<Eigen::Index>(out.columns))
            .noalias() = a * b;
      });
    });
  }

 private:
  template <class T, class F>
  static void with(MatrixRef<const T> m, F&& f) {
    const auto rows = static_cast<Eigen::Index>(m.rows), columns = static_cast<Eigen::Index>(m.columns);
    using Rows = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    using Columns = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;
    if (m.transposed)
      f(Eigen::Map<const Columns>(m.values.data(), rows, columns));
    else
      f(Eigen::Map<const Rows>(m.values.data(), rows, columns));
  }
};
/// The product to pass to `matmul`, so that Eigen multiplies each rank's parts: `matmul(x, w, eigen::product)`.
inline constexpr EigenProduct product{};

}  // namespace distx::inline DISTX_ABI::eigen
