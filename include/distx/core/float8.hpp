// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <bit>
#include <cstdint>

#include "distx/core/detail/floating_point.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

/// The parameters of the 8-bit formats of the Open Compute Project; codes are without the sign bit.
struct E4M3 {
  static constexpr std::uint32_t mantissa_bits = 3, bias = 7;
  static constexpr std::uint32_t largest = 0x7e;   ///< 448
  static constexpr std::uint32_t infinity = 0x80;  ///< none exists
};
struct E5M2 {
  static constexpr std::uint32_t mantissa_bits = 2, bias = 15;
  static constexpr std::uint32_t largest = 0x7b;  ///< 57344
  static constexpr std::uint32_t infinity = 0x7c;
};

/// An 8-bit floating-point number. A storage type; arithmetic converts to float.
template <class Self, class Format>
class float8 : public StoredFloat<Self, std::uint8_t> {
 public:
  constexpr float8() = default;
  /// Rounds to nearest, ties to even, through subnormals; values that are too large, infinities included, become the
  /// largest finite number, and a NaN stays NaN: bit for bit CUDA's saturating conversion.
  constexpr explicit float8(float value) {
    constexpr std::uint32_t dropped = 23 - Format::mantissa_bits;
    constexpr std::uint32_t rebias = 127 - Format::bias;
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
      this->bits_ = 0x7fu;
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
    this->bits_ = static_cast<std::uint8_t>(((bits >> 24) & 0x80u) | result);
  }
  constexpr operator float() const {  // NOLINT: exact, hence implicit
    constexpr std::uint32_t dropped = 23 - Format::mantissa_bits;
    constexpr std::uint32_t rebias = 127 - Format::bias;
    constexpr float smallest = std::bit_cast<float>((rebias + 1 - Format::mantissa_bits) << 23);
    const std::uint32_t sign = static_cast<std::uint32_t>(this->bits_ & 0x80u) << 24;
    const std::uint32_t code = this->bits_ & 0x7fu;
    if (code > Format::largest)
      return std::bit_cast<float>(sign | (code == Format::infinity ? 0x7f800000u : 0x7fc00000u));
    if (code >> Format::mantissa_bits != 0) return std::bit_cast<float>(sign | ((code << dropped) + (rebias << 23)));
    const float magnitude = static_cast<float>(code) * smallest;
    return sign != 0 ? -magnitude : magnitude;
  }
};

}  // namespace detail

/// An 8-bit float with 4 exponent and 3 mantissa bits: up to 448, no infinities, relative steps of 1/16 to 1/8.
class float8_e4m3 : public detail::float8<float8_e4m3, detail::E4M3> {
  using detail::float8<float8_e4m3, detail::E4M3>::float8;
};
/// An 8-bit float with 5 exponent and 2 mantissa bits: up to 57344, relative steps of 1/8 to 1/4. It has infinities,
/// but a conversion never produces one: infinite floats saturate to 57344.
class float8_e5m2 : public detail::float8<float8_e5m2, detail::E5M2> {
  using detail::float8<float8_e5m2, detail::E5M2>::float8;
};

}  // namespace distx::inline DISTX_ABI
