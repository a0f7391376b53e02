// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "distx/core/element.hpp"

namespace distx::inline DISTX_ABI::checkpoint::detail {

/// An element type of the safetensors format.
struct FileType {
  std::string_view name;
  unsigned bits;
  ElementType element = ElementType::bytes;  ///< `bytes` for types that distx only carries
};

inline constexpr FileType file_types[] = {
    {"F64", 64, ElementType::f64},
    {"F32", 32, ElementType::f32},
    {"F16", 16, ElementType::f16},
    {"BF16", 16, ElementType::bf16},
    {"F8_E4M3", 8, ElementType::f8e4m3},
    {"F8_E5M2", 8, ElementType::f8e5m2},
    {"I64", 64, ElementType::i64},
    {"I32", 32, ElementType::i32},
    {"I16", 16, ElementType::i16},
    {"I8", 8, ElementType::i8},
    {"U64", 64, ElementType::u64},
    {"U32", 32, ElementType::u32},
    {"U16", 16, ElementType::u16},
    {"U8", 8, ElementType::u8},
    {"BOOL", 8},
    {"C64", 64},
    {"F8_E8M0", 8},
    {"F6_E2M3", 6},
    {"F6_E3M2", 6},
    {"F4", 4},
};

/// Returns the type that the format calls `name`, or null.
[[nodiscard]] constexpr const FileType* find_file_type(std::string_view name) noexcept {
  for (const auto& type : file_types)
    if (type.name == name) return &type;
  return nullptr;
}
/// Returns the format's name of an element type; U8 for `bytes`.
[[nodiscard]] constexpr std::string_view file_type_of(ElementType element) noexcept {
  for (const auto& type : file_types)
    if (type.element == element && element != ElementType::bytes) return type.name;
  return "U8";
}

/// Returns a * b, or nothing if it does not fit.
[[nodiscard]] constexpr std::optional<std::uint64_t> product(std::uint64_t a, std::uint64_t b) noexcept {
  if (b != 0 && a > UINT64_MAX / b) return std::nullopt;
  return a * b;
}
/// Returns the number of elements, or nothing if it does not fit.
template <class Shape>
[[nodiscard]] constexpr std::optional<std::uint64_t> elements_of(const Shape& shape) noexcept {
  std::optional<std::uint64_t> all = 1;
  bool empty = false;
  for (const std::uint64_t extent : shape) {
    empty = empty || extent == 0;
    if (all && extent != 0) all = product(*all, extent);
  }
  if (all && empty) all = 0;
  return all;
}
/// Returns the bytes of `elements` elements, or nothing if they do not fit or do not fill whole bytes.
[[nodiscard]] constexpr std::optional<std::uint64_t> bytes_of(const FileType& type, std::uint64_t elements) noexcept {
  const auto bits = product(elements, type.bits);
  if (!bits || *bits % 8 != 0) return std::nullopt;
  return *bits / 8;
}

}  // namespace distx::inline DISTX_ABI::checkpoint::detail
