// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <bit>
#include <cstdint>

namespace distx {

namespace detail {

/// What the 8-bit formats of the Open Compute Project differ in; codes are without their sign.
struct E4M3 {
  static constexpr std::uint32_t mantissa_bits = 3, bias = 7;
  static constexpr std::uint32_t largest = 0x7e;   ///< 448
  static constexpr std::uint32_t infinity = 0x80;  ///< none
};
struct E5M2 {
  static constexpr std::uint32_t mantissa_bits = 2, bias = 15;
  static constexpr std::uint32_t largest = 0x7b;  ///< 57344
  static constexpr std::uint32_t infinity = 0x7c;
};

/// A number of 8 bits. It stores; arithmetic happens in float.
template <class Self, class Format>
class float8 {
 public:
  constexpr float8() = default;
  /// Rounds to nearest, ties to even, through subnormals; what is too large, infinite too, becomes the largest finite
  /// number, and a NaN stays a NaN: CUDA's bits.
  constexpr explicit float8(float value) {
    constexpr std::uint32_t dropped = 23 - Format::mantissa_bits;
    constexpr std::uint32_t rebias = 127 - Format::bias;
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
      bits_ = 0x7fu;
      return;
    }
    std::uint32_t result = 0;
    if (magnitude >= (rebias + 1) << 23) {  // normal
      const std::uint32_t rebased = magnitude - (rebias << 23);
      result = (rebased + ((1u << (dropped - 1)) - 1u) + ((rebased >> dropped) & 1u)) >> dropped;
      if (result > Format::largest) result = Format::largest;
    } else if (magnitude >= (rebias - Format::mantissa_bits) << 23) {  // subnormal: shift the full mantissa into place
      const std::uint32_t shift = dropped + rebias + 1 - (magnitude >> 23);
      const std::uint32_t mantissa = (magnitude & 0x007fffffu) | 0x00800000u;
      result = (mantissa + ((1u << (shift - 1)) - 1u) + ((mantissa >> shift) & 1u)) >> shift;
    }
    bits_ = static_cast<std::uint8_t>(((bits >> 24) & 0x80u) | result);
  }
  constexpr operator float() const {  // NOLINT: exact, hence implicit
    constexpr std::uint32_t dropped = 23 - Format::mantissa_bits;
    constexpr std::uint32_t rebias = 127 - Format::bias;
    constexpr float smallest = std::bit_cast<float>((rebias + 1 - Format::mantissa_bits) << 23);
    const std::uint32_t sign = static_cast<std::uint32_t>(bits_ & 0x80u) << 24;
    const std::uint32_t code = bits_ & 0x7fu;
    if (code > Format::largest)
      return std::bit_cast<float>(sign | (code == Format::infinity ? 0x7f800000u : 0x7fc00000u));
    if (code >> Format::mantissa_bits != 0) return std::bit_cast<float>(sign | ((code << dropped) + (rebias << 23)));
    const float magnitude = static_cast<float>(code) * smallest;
    return sign != 0 ? -magnitude : magnitude;
  }
  static constexpr Self from_bits(std::uint8_t bits) {
    Self value;
    value.bits_ = bits;
    return value;
  }
  [[nodiscard]] constexpr std::uint8_t bits() const { return bits_; }

 private:
  std::uint8_t bits_ = 0;
};

}  // namespace detail

/// 4 bits of exponent, 3 of mantissa: to 448, without infinities, by steps of 1/16 to 1/8 of a number.
class float8_e4m3 : public detail::float8<float8_e4m3, detail::E4M3> {
  using detail::float8<float8_e4m3, detail::E4M3>::float8;
};
/// 5 bits of exponent, 2 of mantissa: to 57344, by steps of 1/8 to 1/4 of a number. It has infinities, which only
/// `from_bits` and copies make: what is computed of one is rounded to 57344.
class float8_e5m2 : public detail::float8<float8_e5m2, detail::E5M2> {
  using detail::float8<float8_e5m2, detail::E5M2>::float8;
};

}  // namespace distx
