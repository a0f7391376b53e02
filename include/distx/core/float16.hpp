// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <bit>
#include <cstdint>

#include "distx/core/detail/floating_point.hpp"

namespace distx::inline DISTX_ABI {

/// A bfloat16 number: the upper half of a float's bits. A storage type; arithmetic converts to float.
class bfloat16 : public detail::StoredFloat<bfloat16, std::uint16_t> {
 public:
  constexpr bfloat16() = default;
  /// Rounds to nearest, ties to even; a NaN stays NaN.
  constexpr explicit bfloat16(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    const std::uint32_t rounded = nan ? (bits | 0x00400000u) : bits + 0x7fffu + ((bits >> 16) & 1u);
    bits_ = static_cast<std::uint16_t>(rounded >> 16);
  }
  constexpr operator float() const {  // NOLINT: exact, hence implicit
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits_) << 16);
  }
};

/// An IEEE 754 binary16 number. A storage type; arithmetic converts to float.
class float16 : public detail::StoredFloat<float16, std::uint16_t> {
 public:
  constexpr float16() = default;
  /// Rounds to nearest, ties to even, through subnormals and to infinity beyond 65504; a NaN stays NaN.
  constexpr explicit float16(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    std::uint32_t result = 0;
    if (magnitude > 0x7f800000u) {
      result = 0x7e00u;
    } else if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
      result = 0x7c00u;
    } else if (magnitude >= 0x38800000u) {  // normal: rebias by 112, keep 10 of 23 bits
      const std::uint32_t rebased = magnitude - 0x38000000u;
      result = (rebased + 0x0fffu + ((rebased >> 13) & 1u)) >> 13;
    } else if (magnitude >= 0x33000000u) {  // subnormal: shift the full mantissa into place
      const std::uint32_t shift = 126u - (magnitude >> 23);
      const std::uint32_t mantissa = (magnitude & 0x007fffffu) | 0x00800000u;
      const std::uint32_t half = 1u << (shift - 1);
      result = (mantissa + (half - 1u) + ((mantissa >> shift) & 1u)) >> shift;
    }
    bits_ = static_cast<std::uint16_t>(sign | result);
  }
  constexpr operator float() const {  // NOLINT: exact, hence implicit
    const std::uint32_t sign = static_cast<std::uint32_t>(bits_ & 0x8000u) << 16;
    const std::uint32_t exponent = (bits_ >> 10) & 0x1fu;
    const std::uint32_t mantissa = bits_ & 0x3ffu;
    if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
    if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
};

}  // namespace distx::inline DISTX_ABI
