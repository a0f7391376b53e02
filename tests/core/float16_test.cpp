// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/core/float16.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace {

struct Format {
  int mantissa_bits;
  int bias;
};
constexpr Format bfloat{7, 127};
constexpr Format half{10, 15};

template <class T>
constexpr Format format_of = std::is_same_v<T, distx::bfloat16> ? bfloat : half;

/// The number that a pattern stands for, from the definition of the format.
double decoded(const Format& format, unsigned bits) {
  const int exponent_bits = 15 - format.mantissa_bits;
  const unsigned mantissa = bits & ((1u << format.mantissa_bits) - 1);
  const unsigned exponent = (bits >> format.mantissa_bits) & ((1u << exponent_bits) - 1);
  const double sign = (bits & 0x8000u) != 0 ? -1 : 1;
  if (exponent == (1u << exponent_bits) - 1)
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  const double fraction = std::ldexp(mantissa, -format.mantissa_bits);
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - format.bias);
  return sign * std::ldexp(1 + fraction, static_cast<int>(exponent) - format.bias);
}

/// The nearest pattern, ties to the even one; beyond the largest number, infinity lies one step on.
unsigned encoded(const Format& format, double value) {
  const unsigned sign = std::signbit(value) ? 0x8000u : 0u;
  const double magnitude = std::abs(value);
  const unsigned infinity = 0x7fffu & ~((1u << format.mantissa_bits) - 1);
  const double step =
      std::ldexp(1.0, static_cast<int>(infinity >> format.mantissa_bits) - 1 - format.bias - format.mantissa_bits);
  unsigned below = 0;  // the largest finite pattern that is not above
  for (unsigned bit = 0x4000u; bit != 0; bit >>= 1)
    if ((below | bit) < infinity && decoded(format, below | bit) <= magnitude) below |= bit;
  const double low = decoded(format, below);
  const double high = below + 1 < infinity ? decoded(format, below + 1) : low + step;
  const bool up = magnitude - low > high - magnitude || (magnitude - low == high - magnitude && below % 2 == 1);
  return sign | (up ? below + 1 : below);
}

template <class T>
void check_all_patterns() {
  int wrong = 0;
  for (unsigned bits = 0; bits < 0x10000u; ++bits) {
    const auto pattern = static_cast<std::uint16_t>(bits);
    const float value = T::from_bits(pattern);
    const double expected = decoded(format_of<T>, bits);
    if (std::isnan(expected)) {
      const float again = T(value);
      if (!std::isnan(value) || !std::isnan(again)) ++wrong;
    } else if (static_cast<double>(value) != expected || std::signbit(value) != std::signbit(expected) ||
               T(value).bits() != pattern || T::from_bits(pattern).bits() != pattern) {
      ++wrong;
    }
  }
  CHECK(wrong == 0);
}

template <class T>
bool rounds_as_defined(float value) {
  return T(value).bits() == encoded(format_of<T>, static_cast<double>(value));
}

/// Every midpoint of two neighbours, and the floats next to it.
template <class T>
void check_all_ties() {
  int wrong = 0;
  for (unsigned bits = 0; bits < 0x8000u; ++bits) {
    const double low = decoded(format_of<T>, bits);
    if (!std::isfinite(low)) continue;
    const double high = decoded(format_of<T>, bits + 1);
    const double middle = std::isfinite(high) ? (low + high) / 2 : low + (low - decoded(format_of<T>, bits - 1)) / 2;
    const auto tie = static_cast<float>(middle);
    REQUIRE(static_cast<double>(tie) == middle);
    for (const float value : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 1e38f)})
      if (!rounds_as_defined<T>(value) || !rounds_as_defined<T>(-value)) ++wrong;
  }
  CHECK(wrong == 0);
}

template <class T>
void check_random_floats() {
  std::mt19937 random(17);
  int wrong = 0;
  for (int i = 0; i < 200000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isfinite(value) && !rounds_as_defined<T>(value)) ++wrong;
  }
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("every bit pattern converts to float and back unchanged", T, distx::bfloat16, distx::float16) {
  check_all_patterns<T>();
}
TEST_CASE_TEMPLATE("conversion rounds to nearest, ties to even", T, distx::bfloat16, distx::float16) {
  check_all_ties<T>();
  check_random_floats<T>();
}
TEST_CASE_TEMPLATE("NaN and infinity stay NaN and infinity", T, distx::bfloat16, distx::float16) {
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(static_cast<float>(T(infinity)) == infinity);
  CHECK(static_cast<float>(T(-infinity)) == -infinity);
  // NaNs of every kind, those with low bits alone among them.
  for (const std::uint32_t bits : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu})
    CHECK(std::isnan(static_cast<float>(T(std::bit_cast<float>(bits)))));
}

TEST_CASE("overflow gives infinity") {
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(static_cast<float>(distx::float16(65504.0f)) == 65504.0f);
  CHECK(static_cast<float>(distx::float16(65519.99f)) == 65504.0f);
  CHECK(static_cast<float>(distx::float16(65520.0f)) == infinity);
  CHECK(static_cast<float>(distx::float16(-1e30f)) == -infinity);
  CHECK(static_cast<float>(distx::bfloat16(std::numeric_limits<float>::max())) == infinity);
  CHECK(static_cast<float>(distx::bfloat16(0x1.fep127f)) == 0x1.fep127f);
}

TEST_CASE("float16 has subnormals down to 2^-24") {
  CHECK(static_cast<float>(distx::float16(0x1p-24f)) == 0x1p-24f);
  CHECK(static_cast<float>(distx::float16(0x1p-25f)) == 0.0f);
  CHECK(static_cast<float>(distx::float16(0x1.000002p-25f)) == 0x1p-24f);
  CHECK(std::signbit(static_cast<float>(distx::float16(-0x1p-30f))));
}

static_assert(sizeof(distx::bfloat16) == 2 && sizeof(distx::float16) == 2);
static_assert(static_cast<float>(distx::float16(1.5f)) == 1.5f && static_cast<float>(distx::bfloat16(1.5f)) == 1.5f);
static_assert(!std::is_convertible_v<float, distx::bfloat16> && std::is_convertible_v<distx::bfloat16, float>);

}  // namespace
