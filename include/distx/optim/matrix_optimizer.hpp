// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/optim/detail/fused_direction.hpp"

namespace distx {

/// What a parameter is as a matrix: rows one after another.
struct MatrixShape {
  std::size_t rows = 0;
  std::size_t columns = 0;

  [[nodiscard]] std::size_t size() const noexcept { return rows * columns; }
  friend bool operator==(const MatrixShape&, const MatrixShape&) = default;
};

/// An optimizer that needs the whole matrix of a parameter's gradient at once: such parameters are dealt out whole.
///
/// No word of distribution is in it. `states`, `coefficients`, `direction` and `apply` are those of a NormOptimizer;
/// between the two passes, in place of `trust`, there are
/// - `static std::size_t scratch(MatrixShape)`: elements of memory that it wants to work in;
/// - `template <class T> double transform(HostStream, MatrixShape, Span<T> direction, Span<T> scratch) const`: changes
///   the direction, of float or double, and returns the factor for `apply`.
template <class O>
concept MatrixOptimizer = std::copyable<O> && requires(const O& optimizer, MatrixShape shape, Span<float> values) {
  { O::states } -> std::convertible_to<std::size_t>;
  { O::scratch(shape) } -> std::convertible_to<std::size_t>;
  { optimizer.transform(HostStream{}, shape, values, values) } -> std::convertible_to<double>;
} && detail::DirectsElements<O, float> && detail::DirectsElements<O, double>;

}  // namespace distx
