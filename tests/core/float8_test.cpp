// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/core/float8.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <type_traits>

namespace {

using distx::float8_e4m3;
using distx::float8_e5m2;

constexpr float infinity = std::numeric_limits<float>::infinity();

template <class T>
constexpr bool has_infinity = std::is_same_v<T, float8_e5m2>;
template <class T>
constexpr float largest = has_infinity<T> ? 57344.0f : 448.0f;

/// The number that a code stands for, from the definition of the format.
template <class T>
double decoded(unsigned code) {
  const int mantissa_bits = has_infinity<T> ? 2 : 3, bias = has_infinity<T> ? 15 : 7;
  const unsigned mantissa = code & ((1u << mantissa_bits) - 1);
  const int exponent = static_cast<int>((code & 0x7fu) >> mantissa_bits);
  const double sign = (code & 0x80u) != 0 ? -1 : 1;
  if (has_infinity<T> && exponent == 31)
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  if ((code & 0x7fu) == 0x7fu) return std::numeric_limits<double>::quiet_NaN();
  const double fraction = std::ldexp(mantissa, -mantissa_bits);
  return exponent == 0 ? sign * std::ldexp(fraction, 1 - bias) : sign * std::ldexp(1 + fraction, exponent - bias);
}

/// The code of the finite number that is nearest, of two the even one: all are looked at.
template <class T>
unsigned nearest(float value) {
  const unsigned sign = std::signbit(value) ? 0x80u : 0u;
  const double magnitude = std::min(std::abs(static_cast<double>(value)), 1e6);  // so that differences are exact
  unsigned best = 0;
  for (unsigned code = 1; code < 0x80u; ++code) {
    const double number = decoded<T>(code);
    if (!std::isfinite(number)) continue;
    const double away = std::abs(number - magnitude), so_far = std::abs(decoded<T>(best) - magnitude);
    if (away < so_far || (away == so_far && code % 2 == 0)) best = code;
  }
  return sign | best;
}

TEST_CASE_TEMPLATE("every code has its format's value, and converts back", T, float8_e4m3, float8_e5m2) {
  for (unsigned code = 0; code < 0x100u; ++code) {
    CAPTURE(code);
    const auto number = T::from_bits(static_cast<std::uint8_t>(code));
    const float value = number;
    const double expected = decoded<T>(code);
    CHECK(number.bits() == code);
    if (std::isnan(expected)) {
      CHECK(std::isnan(value));
      CHECK(std::isnan(static_cast<float>(T(value))));
    } else {
      CHECK(static_cast<double>(value) == expected);
      CHECK(std::signbit(value) == std::signbit(expected));
      if (std::isfinite(value)) CHECK(T(value).bits() == code);
    }
  }
}

TEST_CASE_TEMPLATE("conversion rounds to nearest, ties to even", T, float8_e4m3, float8_e5m2) {
  int wrong = 0;
  const auto look = [&](float value) {
    for (const float each : {value, -value})
      if (T(each).bits() != nearest<T>(each)) ++wrong;
  };
  // Every number, every midpoint of two neighbours, and the floats next to them.
  double before = 0;
  for (unsigned code = 0; code < 0x80u; ++code) {
    const double number = decoded<T>(code);
    if (!std::isfinite(number)) continue;
    for (const double point : {number, (before + number) / 2}) {
      const auto value = static_cast<float>(point);
      REQUIRE(static_cast<double>(value) == point);
      for (const float each : {value, std::nextafter(value, 0.0f), std::nextafter(value, infinity)}) look(each);
    }
    before = number;
  }
  std::mt19937 random(17);
  std::uniform_real_distribution<float> exponent(-30, 20), mantissa(1, 2);
  for (int i = 0; i < 20000; ++i) look(std::ldexp(mantissa(random), static_cast<int>(exponent(random))));
  for (int i = 0; i < 20000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isfinite(value)) look(value);
  }
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("overflow saturates to the largest finite number, and NaN stays NaN", T, float8_e4m3, float8_e5m2) {
  for (const float value : {largest<T>, std::nextafter(largest<T>, infinity), largest<T> * 1.1f, largest<T> * 2,
                            std::numeric_limits<float>::max(), infinity}) {
    CAPTURE(value);
    CHECK(static_cast<float>(T(value)) == largest<T>);
    CHECK(static_cast<float>(T(-value)) == -largest<T>);
  }
  // NaNs of every kind, those with low bits alone among them.
  for (const std::uint32_t bits : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu})
    CHECK(std::isnan(static_cast<float>(T(std::bit_cast<float>(bits)))));
}

TEST_CASE_TEMPLATE("signed zeros and subnormals convert exactly", T, float8_e4m3, float8_e5m2) {
  const float smallest = has_infinity<T> ? 0x1p-16f : 0x1p-9f;
  CHECK(T(0.0f).bits() == 0);
  CHECK(T(-0.0f).bits() == 0x80);
  CHECK(T(smallest).bits() == 1);
  CHECK(T(smallest / 2).bits() == 0);
  CHECK(T(std::nextafter(smallest / 2, 1.0f)).bits() == 1);
  CHECK(T(-smallest * 1.5f).bits() == 0x82);
  CHECK(T(-std::numeric_limits<float>::denorm_min()).bits() == 0x80);
}

template <class T>
constexpr bool stores =
    sizeof(T) == 1 && std::is_trivially_copyable_v<T> && std::is_standard_layout_v<T> &&
    !std::is_convertible_v<float, T> && std::is_convertible_v<T, float> && T(1.5f) == 1.5f && T() == 0.0f;
static_assert(stores<float8_e4m3> && stores<float8_e5m2>);

}  // namespace
