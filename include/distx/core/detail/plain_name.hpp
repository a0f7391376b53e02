// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <source_location>
#include <string>
#include <string_view>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The inline namespace of version and form as the compiler spells it in names, with its colons; empty if it does not.
consteval std::string_view abi_in_names() {
  std::string_view text = std::source_location::current().function_name();
  text.remove_prefix(text.find("distx::") + 7);
  return text.substr(0, text.find("detail::"));
}

/// Returns what the compiler spells, without that namespace: the same in every form.
[[nodiscard]] inline std::string plain_name(std::string_view spelled) {
  constexpr std::string_view abi = abi_in_names();
  std::string text(spelled);
  if (!abi.empty())
    for (auto at = text.find(abi); at != std::string::npos; at = text.find(abi)) text.erase(at, abi.size());
  return text;
}

/// Returns the name of a type as the compiler spells it, in every form of the library.
template <class T>
[[nodiscard]] std::string type_name() {
  std::string_view text = std::source_location::current().function_name();
  text.remove_prefix(text.find("T = ") + 4);
  return plain_name(text.substr(0, text.find_first_of(";]")));
}

}  // namespace distx::inline DISTX_ABI::detail
