// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Returns the length of the UTF-8 sequence at the start of `text`, 0 if it is invalid (RFC 3629, section 4).
inline std::size_t utf8_length(std::string_view text) noexcept {
  const auto at = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto between = [&](std::size_t i, unsigned low, unsigned high) { return at(i) >= low && at(i) <= high; };
  const unsigned lead = at(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return between(1, 0x80, 0xBF) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF)
    return between(1, lead == 0xE0 ? 0xA0 : 0x80, lead == 0xED ? 0x9F : 0xBF) && between(2, 0x80, 0xBF) ? 3 : 0;
  if (lead >= 0xF0 && lead <= 0xF4)
    return between(1, lead == 0xF0 ? 0x90 : 0x80, lead == 0xF4 ? 0x8F : 0xBF) && between(2, 0x80, 0xBF) &&
                   between(3, 0x80, 0xBF)
               ? 4
               : 0;
  return 0;
}

/// Returns text as a JSON string with quotes; bytes that are not UTF-8 become U+FFFD.
inline std::string json_string(std::string_view text) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string json = "\"";
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const auto c = static_cast<unsigned char>(text.front());
    if (length == 0)
      json += "\\ufffd";
    else if (c == '"' || c == '\\')
      json.append(1, '\\').append(1, text.front());
    else if (c < 0x20)
      json.append("\\u00").append(1, digits[c >> 4]).append(1, digits[c & 15u]);
    else
      json += text.substr(0, length);
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return json += '"';
}

}  // namespace distx::inline DISTX_ABI::detail
