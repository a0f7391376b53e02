// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <source_location>
#include <string_view>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The compiler's spelling of a type, with its namespaces.
template <class Axis>
consteval std::string_view spelling_of() {
  std::string_view text = std::source_location::current().function_name();
  constexpr std::string_view before = "Axis = ";
  text.remove_prefix(text.find(before) + before.size());
  return text.substr(0, text.find_first_of(";]"));
}

/// The name of an axis in messages: its type's, without namespaces.
template <class Axis>
[[nodiscard]] consteval std::string_view axis_name() {
  std::string_view name = spelling_of<Axis>();
  if (const auto colon = name.rfind("::"); colon != name.npos && name.find('<') == name.npos)
    name.remove_prefix(colon + 2);
  return name;
}

}  // namespace distx::inline DISTX_ABI::detail
