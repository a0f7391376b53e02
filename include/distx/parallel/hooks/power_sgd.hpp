// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "distx/comm/reductions.hpp"
#include "distx/core/detail/floating_point.hpp"
#include "distx/memory/operations.hpp"
#include "distx/parallel/hooks/gradient_hook.hpp"

namespace distx::inline DISTX_ABI::hooks {

/// PowerSGD (Vogels, Karimireddy, Jaggi, arXiv 1905.13727): averages each gradient matrix M as P·Qᵀ of a low rank.
///
/// One step of the power method from the Q of the step before: P = M·Q is averaged and orthogonalized, Q = Mᵀ·P is
/// averaged. A rank adds the compression error, M - P·Qᵀ, to its next gradient (error feedback). Parameters without
/// `.rows`, and matrices of which P and Q have more than half of the elements, are averaged exactly. Sends two
/// all_reduces for a bucket. State: the errors, one float per element of a compressed matrix, and factors. Gradients
/// that are not finite reset them.
/// @tparam Rank  the columns of P and Q
/// @tparam ExactReductions  the first reductions of each bucket, also after `load` and `recover`, that average all
///   gradients exactly: while gradients still change direction quickly, a low rank costs most. Accumulate<Sharded>
///   makes several reductions in a step
template <std::size_t Rank, std::size_t ExactReductions = 0>
struct PowerSGD {
  static_assert(Rank > 0, "distx::hooks::PowerSGD: the rank must be at least 1");
  static_assert(ExactReductions <= 1 << 24, "distx::hooks::PowerSGD: a float counts at most 16777216 exact reductions");

  /// Returns the floats of the errors, with which the state begins.
  [[nodiscard]] static std::size_t error_size(const BucketShape& shape) { return Sizes(shape).errors; }

  [[nodiscard]] static std::size_t state_size(const BucketShape& shape) {
    const Sizes sizes(shape);
    return sizes.errors + sizes.first + sizes.second + (ExactReductions > 0 ? 1 : 0);
  }
  static void reduce(const GradientBucket& bucket) {
    if (counts_as_exact(bucket))
      all_reduce(bucket.comm, bucket.gradients, average, bucket.location);
    else
      reduce_factors(bucket);
    copy({}, bucket.averages, bucket.gradients.subspan(bucket.begin, bucket.averages.size()));
  }

 private:
  /// Returns whether this reduction is one of the exact ones, and counts it.
  [[nodiscard]] static bool counts_as_exact(const GradientBucket& bucket) noexcept {
    if constexpr (ExactReductions > 0) {
      float& reductions = bucket.state[bucket.state.size() - 1];
      const bool exact = reductions < static_cast<float>(ExactReductions);
      if (exact) ++reductions;
      return exact;
    }
    return false;
  }
  static void reduce_factors(const GradientBucket& bucket) {
    const Sizes sizes(bucket.shape);
    const auto first = bucket.state.subspan(sizes.errors, sizes.first);  // every P, and what is averaged exactly
    const auto second = bucket.state.subspan(sizes.errors + sizes.first, sizes.second);  // every Qᵀ
    for_each_part(bucket, [](const Part& part) {
      const auto& [size, rows, columns, gradient, error, p, q] = part;
      if (rows == 0) std::copy(gradient, gradient + size, p);  // the loops below are empty then
      for (std::size_t i = 0; i < rows * columns; ++i) gradient[i] += error[i];
      for (std::size_t k = 0; k < Rank; ++k) normalize(q + k * columns, columns, k);
      for (std::size_t row = 0; row < rows; ++row)
        for (std::size_t k = 0; k < Rank; ++k)
          p[k * rows + row] = dot(gradient + row * columns, q + k * columns, columns);
    });
    all_reduce(bucket.comm, first, average, bucket.location);
    for_each_part(bucket, [](const Part& part) {
      const auto& [size, rows, columns, gradient, error, p, q] = part;
      orthogonalize(p, rows);
      std::fill(q, q + Rank * columns, 0.0F);
      for (std::size_t row = 0; row < rows; ++row)
        for (std::size_t k = 0; k < Rank; ++k)
          add_scaled(q + k * columns, p[k * rows + row], gradient + row * columns, columns);
    });
    if (!second.empty()) all_reduce(bucket.comm, second, average, bucket.location);
    for_each_part(bucket, restore);
  }
  /// A gradient and its state. Without P and Q, `rows` is 0, and `p` is where it is averaged exactly.
  struct Part {
    std::size_t size, rows, columns;
    float *gradient, *error, *p, *q;
  };
  template <class F>
  static void for_each_part(const GradientBucket& bucket, F&& f) {
    const Sizes sizes(bucket.shape);
    float *error = bucket.state.data(), *p = error + sizes.errors, *q = p + sizes.first;
    for (const auto& each : bucket.shape.parameters) {
      const std::size_t rows = compressed(each) ? each.rows : 0, columns = rows > 0 ? each.size / rows : 0;
      f(Part{each.size, rows, columns, bucket.gradients.data() + each.begin, error, p, q});
      error += rows * columns;
      p += rows > 0 ? Rank * rows : each.size;
      q += Rank * columns;
    }
  }
  /// The elements of each part of the state.
  struct Sizes {
    explicit Sizes(const BucketShape& shape) {
      for (const auto& each : shape.parameters) {
        errors += compressed(each) ? each.size : 0;
        first += compressed(each) ? Rank * each.rows : each.size;
        second += compressed(each) ? Rank * (each.size / each.rows) : 0;
      }
    }
    std::size_t errors = 0, first = 0, second = 0;
  };

  [[nodiscard]] static bool compressed(const GradientRange& each) noexcept {
    return each.rows > 0 && 2 * Rank * (each.rows + each.size / each.rows) <= each.size;
  }
  [[nodiscard]] static float dot(const float* a, const float* b, std::size_t size) noexcept {
    constexpr std::size_t lanes = 8;  // sums that a compiler adds to at once
    float sums[lanes] = {};
    std::size_t i = 0;
    for (; i + lanes <= size; i += lanes)
      for (std::size_t lane = 0; lane < lanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
    for (std::size_t lane = 1; lane < lanes; ++lane) sums[0] += sums[lane];
    for (; i < size; ++i) sums[0] += a[i] * b[i];
    return sums[0];
  }
  static void add_scaled(float* to, float factor, const float* from, std::size_t size) noexcept {
    for (std::size_t i = 0; i < size; ++i) to[i] += factor * from[i];
  }
  static void divide(float* column, float divisor, std::size_t size) noexcept {
    for (std::size_t i = 0; i < size; ++i) column[i] /= divisor;
  }
  /// Divides a column by its largest magnitude, so that its squares neither overflow nor are all 0, and returns whether
  /// it can. Otherwise it fills the column with zeros, or NaN if an element is not finite, so that the step is skipped.
  [[nodiscard]] static bool scale(float* column, std::size_t size) noexcept {
    float largest = 0;
    bool finite = true;
    for (std::size_t i = 0; i < size; ++i) {
      largest = std::max(largest, std::abs(column[i]));
      finite = finite && detail::is_finite(column[i]);
    }
    const bool usable = finite && largest >= std::numeric_limits<float>::min();
    if (usable)
      divide(column, largest, size);
    else
      std::fill(column, column + size, std::bit_cast<float>(finite ? 0 : ~0U));
    return usable;
  }
  /// Normalizes a column of Q. Begins with an arbitrary one, the same on every rank, where there is none.
  static void normalize(float* column, std::size_t size, std::size_t k) noexcept {
    if (!scale(column, size))
      for (std::size_t i = 0; i < size; ++i) {
        const auto mixed = static_cast<std::uint32_t>(i * Rank + k + 1) * 2654435761U;
        column[i] = static_cast<float>((mixed ^ mixed >> 15) % 2001) / 1000 - 1;
      }
    divide(column, std::sqrt(dot(column, column, size)), size);
  }
  /// Makes the columns of P orthonormal; those that depend on earlier ones become zero.
  static void orthogonalize(float* p, std::size_t rows) noexcept {
    for (std::size_t k = 0; k < Rank; ++k) {
      float* const column = p + k * rows;
      if (!scale(column, rows)) continue;
      const float before = dot(column, column, rows);
      for (std::size_t j = 0; j < k; ++j) add_scaled(column, -dot(column, p + j * rows, rows), p + j * rows, rows);
      const float squares = dot(column, column, rows);
      const float factor = squares > 1e-10F * before ? 1 / std::sqrt(squares) : 0;
      for (std::size_t row = 0; row < rows; ++row) column[row] *= factor;
    }
  }
  /// Writes the averages in place of the gradients, and the errors.
  static void restore(Part part) {
    auto& [size, rows, columns, gradient, error, p, q] = part;
    if (rows == 0) std::copy(p, p + size, gradient);
    for (std::size_t row = 0; row < rows; ++row, gradient += columns, error += columns) {
      std::copy(gradient, gradient + columns, error);
      std::fill(gradient, gradient + columns, 0.0F);
      for (std::size_t k = 0; k < Rank; ++k) add_scaled(gradient, p[k * rows + row], q + k * columns, columns);
      for (std::size_t i = 0; i < columns; ++i) {
        const float lost = error[i] - gradient[i];
        error[i] = detail::is_finite(lost) ? lost : 0;
      }
    }
  }
};

}  // namespace distx::inline DISTX_ABI::hooks
