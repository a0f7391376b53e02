// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "distx/core/float16.hpp"
#include "distx/core/float8.hpp"

namespace distx::inline DISTX_ABI {

/// An element type at run time. Every backend reduces all of them but `bytes`, which stands for any other type and can
/// only be moved.
enum class ElementType : std::uint8_t {
  i8,
  u8,
  i16,
  u16,
  i32,
  u32,
  i64,
  u64,
  f8e4m3,
  f8e5m2,
  bf16,
  f16,
  f32,
  f64,
  bytes
};

namespace detail {

/// The number of values of ElementType.
inline constexpr std::size_t element_type_count = static_cast<std::size_t>(ElementType::bytes) + 1;

// Integers by size and signedness, because long and long long are different types.
template <class T>
constexpr ElementType element_type_of() {
  if constexpr (std::same_as<T, float>)
    return ElementType::f32;
  else if constexpr (std::same_as<T, double>)
    return ElementType::f64;
  else if constexpr (std::same_as<T, bfloat16>)
    return ElementType::bf16;
  else if constexpr (std::same_as<T, float16>)
    return ElementType::f16;
  else if constexpr (std::same_as<T, float8_e4m3>)
    return ElementType::f8e4m3;
  else if constexpr (std::same_as<T, float8_e5m2>)
    return ElementType::f8e5m2;
  else if constexpr (std::integral<T> && !std::same_as<T, bool> && sizeof(T) <= 8) {
    constexpr int width = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 2 : sizeof(T) == 4 ? 4 : 6;
    return static_cast<ElementType>(width + (std::is_signed_v<T> ? 0 : 1));
  } else
    return ElementType::bytes;
}

}  // namespace detail

/// Returns whether a type is a float of fewer than 32 bits, which is stored as it is and computed with in float.
constexpr bool is_narrow_float(ElementType type) noexcept {
  return type >= ElementType::f8e4m3 && type <= ElementType::f16;
}

/// A type that can be sent: copying its bytes copies it.
template <class T>
concept Transferable = std::is_trivially_copyable_v<T> && std::is_object_v<T>;

/// A type that can be reduced: an integer of 8 to 64 bits, float8_e4m3, float8_e5m2, bfloat16, float16, float, double.
template <class T>
concept Element = Transferable<T> && detail::element_type_of<std::remove_cv_t<T>>() != ElementType::bytes;

/// A type of weights: what optimizers and matrix products compute with.
template <class T>
concept FloatingElement =
    std::same_as<T, float> || std::same_as<T, double> || std::same_as<T, bfloat16> || std::same_as<T, float16>;

/// A type that can be averaged. The 8-bit ones can be reduced, sent and cast, but not trained.
template <class T>
concept FractionalElement = FloatingElement<T> || std::same_as<T, float8_e4m3> || std::same_as<T, float8_e5m2>;

/// The ElementType of `T`.
template <class T>
inline constexpr ElementType element_type = detail::element_type_of<std::remove_cv_t<T>>();

/// The type in which `T` is computed with: float for floats of fewer than 32 bits, else `T`.
template <class T>
using accumulator_t = std::conditional_t<is_narrow_float(element_type<T>), float, std::remove_cv_t<T>>;

/// Returns the name of a type, such as "float32".
constexpr std::string_view name_of(ElementType type) {
  constexpr std::string_view names[detail::element_type_count] = {
      "int8",        "uint8",       "int16",    "uint16",  "int32",   "uint32",  "int64", "uint64",
      "float8_e4m3", "float8_e5m2", "bfloat16", "float16", "float32", "float64", "bytes"};
  return names[static_cast<std::size_t>(type)];
}

/// Returns the bytes of one element, 1 for `bytes`.
constexpr std::size_t size_of(ElementType type) {
  constexpr std::size_t sizes[detail::element_type_count] = {1, 1, 2, 2, 4, 4, 8, 8, 1, 1, 2, 2, 4, 8, 1};
  return sizes[static_cast<std::size_t>(type)];
}

}  // namespace distx::inline DISTX_ABI
