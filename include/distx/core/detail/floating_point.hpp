// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <bit>
#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "distx/core/version.hpp"

// docs/compiler_flags.md lists what such flags break. Newer clangs attach the promise that nothing is infinite or NaN
// to arguments and results of functions, so that tests of bits are removed as well.
#if defined(__clang_major__) && __clang_major__ >= 17 && __FINITE_MATH_ONLY__ != 0
#error distx: -ffast-math removes the checks for NaN and infinity with this clang; add -fno-fast-math, or \
-fhonor-nans -fhonor-infinities
#elif !defined(DISTX_ACCEPT_FAST_MATH) &&                                                    \
    (defined(__FAST_MATH__) || __FINITE_MATH_ONLY__ != 0 || defined(__ASSOCIATIVE_MATH__) || \
     defined(__NO_SIGNED_ZEROS__) || defined(__RECIPROCAL_MATH__))
#error distx: -ffast-math or a part of it changes the bits of results; add -fno-fast-math, or define \
DISTX_ACCEPT_FAST_MATH to accept what docs/compiler_flags.md lists
#endif

namespace distx::inline DISTX_ABI::detail {

/// The unsigned integer of the size of T.
template <std::floating_point T>
  requires(sizeof(T) == 4 || sizeof(T) == 8)
using bits_of_t = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;

template <std::floating_point T>
inline constexpr bits_of_t<T> sign_bit = bits_of_t<T>{1} << (8 * sizeof(T) - 1);
/// The bits of infinity; those of a NaN without its sign are a larger integer.
template <std::floating_point T>
inline constexpr bits_of_t<T> infinity_bits = sizeof(T) == 4 ? 0xffull << 23 : 0x7ffull << 52;

/// Returns whether `value` is NaN, with every accepted flag; -ffinite-math-only removes std::isnan.
template <std::floating_point T>
[[nodiscard]] constexpr bool is_nan(const T& value) noexcept {
  return (std::bit_cast<bits_of_t<T>>(value) & ~sign_bit<T>) > infinity_bits<T>;
}
/// Returns whether `value` is neither infinite nor NaN, with every accepted flag.
template <std::floating_point T>
[[nodiscard]] constexpr bool is_finite(const T& value) noexcept {
  return (std::bit_cast<bits_of_t<T>>(value) & ~sign_bit<T>) < infinity_bits<T>;
}

/// The base of storage-only floating-point types: holds the bits. Arithmetic converts to float.
template <class Self, std::unsigned_integral Bits>
class StoredFloat {
 public:
  /// Returns the number with these bits.
  static constexpr Self from_bits(Bits bits) {
    Self value;
    value.bits_ = bits;
    return value;
  }
  [[nodiscard]] constexpr Bits bits() const { return bits_; }

 protected:
  Bits bits_ = 0;
};

/// Returns whether the arithmetic of this thread keeps subnormal numbers. Linking with -ffast-math makes it flush them
/// to zero, regardless of the flags of this translation unit.
[[nodiscard]] inline bool keeps_subnormals() noexcept {
  const volatile double smallest = std::numeric_limits<double>::min();
  return std::bit_cast<std::uint64_t>(smallest * 0.5) != 0;
}

}  // namespace distx::inline DISTX_ABI::detail
