// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Returns "name=value name=value …".
template <std::size_t N>
[[nodiscard]] std::string to_fields(const std::array<std::string_view, N>& names,
                                    const std::array<std::uint64_t, N>& values) {
  std::string text;
  for (std::size_t i = 0; i < N; ++i)
    text.append(i == 0 ? "" : " ").append(names[i]).append("=").append(std::to_string(values[i]));
  return text;
}
/// Returns the values of a text that `to_fields` has made with the same names, or nothing for any other text.
template <std::size_t N>
[[nodiscard]] std::optional<std::array<std::uint64_t, N>> from_fields(const std::array<std::string_view, N>& names,
                                                                      const std::string& text) {
  std::array<std::uint64_t, N> values{};
  std::string_view rest = text;
  for (std::size_t i = 0; i < N; ++i) {
    const std::string head = (i == 0 ? "" : " ") + std::string(names[i]) + "=";
    if (!rest.starts_with(head)) return std::nullopt;
    rest.remove_prefix(head.size());
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), values[i]);
    if (error != std::errc{}) return std::nullopt;
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
  }
  return rest.empty() ? std::optional(values) : std::nullopt;
}

}  // namespace distx::inline DISTX_ABI::detail
