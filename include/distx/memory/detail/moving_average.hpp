// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <limits>

#include "distx/memory/lanes.hpp"

namespace distx::inline DISTX_ABI::detail {

/// An exponential moving average: kept * average + (1 - kept) * value, computed in T.
///
/// Only the smaller of the two weights is rounded to T, and the other one is exactly what it leaves of 1. Two rounded
/// weights, such as float(0.9) and float(0.1), do not add up to 1, which changes the average at every value.
template <class T>
struct MovingAverage {
  T weight{};         ///< the smaller weight
  bool of_average{};  ///< whether that is the weight of the average so far

  [[nodiscard]] static constexpr MovingAverage keeping(double kept) {
    return {static_cast<T>(kept < 0.5 ? kept : 1 - kept), kept < 0.5};
  }
  /// Returns the part that is kept, after rounding; bias corrections are computed from it.
  [[nodiscard]] constexpr double kept() const {
    return of_average ? static_cast<double>(weight) : 1 - static_cast<double>(weight);
  }
  /// Adds one more value to the average; V is a number or several at once.
  template <class V>
  constexpr void add(V& mean, const V& value) const {
    if (of_average) [[unlikely]]
      mean = value + weight * (mean - value);
    else
      mean += weight * (value - mean);
  }
};

/// Returns the square of a number, or the largest T if it overflows: an average that is infinite would be NaN after the
/// next value.
template <class T, class V>
[[nodiscard]] constexpr V finite_square(const V& x) {
  const V square = x * x, most = std::numeric_limits<T>::max();
  return distx::select(square > most, most, square);
}

/// An exponential moving sum: kept * sum + value, computed in T.
///
/// A large factor is rounded as what it lacks of 1, on whose inverse the sum's size depends.
template <class T>
struct MovingSum {
  T weight{};     ///< kept, or 1 - kept
  bool of_sum{};  ///< whether it is kept

  [[nodiscard]] static constexpr MovingSum keeping(double kept) {
    return {static_cast<T>(kept < 0.75 ? kept : 1 - kept), kept < 0.75};
  }
  /// Adds one more value to the sum; V is a number or several at once.
  template <class V>
  constexpr void add(V& total, const V& value) const {
    if (of_sum) [[unlikely]]
      total = weight * total + value;
    else
      total += value - weight * total;
  }
};

}  // namespace distx::inline DISTX_ABI::detail
