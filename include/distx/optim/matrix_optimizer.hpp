// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/optim/fused_direction.hpp"

namespace distx::inline DISTX_ABI {

/// The shape of a parameter as a row-major matrix.
struct MatrixShape {
  std::size_t rows = 0;
  std::size_t columns = 0;

  /// Returns the number of elements.
  [[nodiscard]] std::size_t size() const noexcept { return rows * columns; }
  friend bool operator==(const MatrixShape&, const MatrixShape&) = default;
};

/// An optimizer that needs the whole gradient matrix of a parameter, such as Muon; each matrix is assigned to one rank.
///
/// It contains no communication. `states`, `coefficients`, `direction` and `apply` are those of a NormOptimizer;
/// instead of `trust`, between the two passes, it needs:
/// - `static std::size_t scratch(MatrixShape)`: elements of scratch memory that `transform` needs;
/// - `template <class T> double transform(HostStream, MatrixShape, Span<T> direction, Span<T> scratch) const`: changes
///   the direction (float or double, row-major) in place and returns the factor for `apply`.
template <class O>
concept MatrixOptimizer = std::copyable<O> && requires(const O& optimizer, MatrixShape shape, Span<float> values) {
  { O::states } -> std::convertible_to<std::size_t>;
  { O::scratch(shape) } -> std::convertible_to<std::size_t>;
  { optimizer.transform(HostStream{}, shape, values, values) } -> std::convertible_to<double>;
} && detail::DirectsElements<O, float> && detail::DirectsElements<O, double>;

}  // namespace distx::inline DISTX_ABI
