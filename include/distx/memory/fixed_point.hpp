// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "distx/core/span.hpp"
#include "distx/memory/lanes.hpp"

// Norms in fixed point: sums of integers, whose bits do not depend on the order or the partitioning. Operations on host
// memory; see memory/operations.hpp.
namespace distx::inline DISTX_ABI {

/// Returns the largest magnitude of the values, 0 if there are none; infinity if a value is infinite or NaN.
template <FloatingElement T>
[[nodiscard]] double largest_magnitude(HostStream, Span<T> values) noexcept {
  using A = accumulator_t<T>;
  using V = detail::Lanes<A>;
  typedef detail::bits_of_t<A> Bits [[gnu::vector_size(sizeof(typename V::native))]];
  V most = A{0};
  Bits check{};  // the sign bit is set if a value is infinite or NaN: its exponent overflows
  constexpr auto exponent_step = detail::sign_bit<A> - detail::infinity_bits<A>;
  std::size_t i = 0;
  const auto look = [&](V value) {
    const V magnitude = abs(value);
    most = select(most < magnitude, magnitude, most);
    check |= __builtin_bit_cast(Bits, magnitude.to_native()) + exponent_step;
  };
  if constexpr (std::same_as<std::remove_const_t<T>, A>)
    for (; i + V::size <= values.size(); i += V::size) look(V::load(values.data() + i));
  for (; i < values.size(); ++i) look(static_cast<A>(values[i]));
  A largest = 0;
  detail::bits_of_t<A> all = 0;
  for (std::size_t lane = 0; lane < V::size; ++lane) {
    largest = std::max(largest, most[lane]);
    all |= check[lane];
  }
  // Chosen by their bits: with -ffinite-math-only, a compiler may assume that no number is infinite.
  const double finite = static_cast<double>(largest);
  return std::bit_cast<double>((all & detail::sign_bit<A>) == 0 ? std::bit_cast<std::uint64_t>(finite)
                                                                : detail::infinity_bits<double>);
}

/// A sum of squares as an integer, high * 2^32 + low, in units of 2^-62 times the square of 2^exponent.
struct FixedPointSum {
  std::uint64_t high = 0;
  std::uint64_t low = 0;  ///< below 2^32

  /// Returns the smallest exponent for values up to that magnitude.
  [[nodiscard]] static int exponent_for(double largest) noexcept {
    int exponent = 0;
    static_cast<void>(std::frexp(largest, &exponent));
    return std::max(exponent, -900);  // so that 2^-exponent is finite
  }
  /// Returns the sum of squares.
  [[nodiscard]] double value(int exponent) const noexcept {
    return std::ldexp(std::ldexp(static_cast<double>(high), 32) + static_cast<double>(low), 2 * exponent - 62);
  }
  /// Returns the square root of the sum, also if the sum itself would overflow or underflow.
  [[nodiscard]] double root(int exponent) const noexcept { return std::ldexp(std::sqrt(value(0)), exponent); }
  FixedPointSum& operator+=(const FixedPointSum& other) noexcept {
    low += other.low;
    high += other.high + (low >> 32);
    low &= 0xffffffffu;
    return *this;
  }
  friend bool operator==(const FixedPointSum&, const FixedPointSum&) = default;
};

/// Returns the sum of the values' squares; each square is truncated to the unit, and the sum is exact.
/// @pre every magnitude is below 2^exponent; there are fewer than 2^34 values on all ranks
template <FloatingElement T>
[[nodiscard]] FixedPointSum fixed_point_squares(HostStream, Span<T> values, int exponent) noexcept {
  constexpr std::size_t block = 65536;
  const double scale = std::ldexp(1.0, -exponent);
  FixedPointSum total;
  for (std::size_t begin = 0; begin < values.size(); begin += block) {
    std::uint64_t high = 0, low = 0;
    for (std::size_t i = begin; i < std::min(begin + block, values.size()); ++i) {
      const double scaled = static_cast<double>(static_cast<accumulator_t<T>>(values[i])) * scale;
      const auto units = static_cast<std::uint64_t>(static_cast<std::int64_t>(scaled * scaled * 0x1p62));
      high += units >> 32;
      low += units & 0xffffffffu;
    }
    total += {high + (low >> 32), low & 0xffffffffu};
  }
  return total;
}

namespace detail {

/// One of the arrays that a single launch reduces on a GPU, and the index of its result.
template <MemorySpace Space>
struct ReducedPiece {
  Span<const AnyElement, Space> values{};
  std::size_t result = 0;
};

/// A gradient's norm, and the factor that clips it.
struct ClipFactor {
  double norm = 0;
  double factor = 1;  ///< NaN if a gradient is infinite or NaN
};

}  // namespace detail

/// Returns the Euclidean norm of the values; infinity if a value is infinite or NaN.
template <FloatingElement T>
[[nodiscard]] double fixed_point_norm(HostStream stream, Span<T> values) noexcept {
  const double largest = largest_magnitude(stream, values);
  if (largest == 0 || !detail::is_finite(largest)) return largest;
  const int exponent = FixedPointSum::exponent_for(largest);
  return fixed_point_squares(stream, values, exponent).root(exponent);
}

}  // namespace distx::inline DISTX_ABI
