// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <source_location>
#include <string_view>

namespace distx {

namespace detail {

/// The compiler's spelling of a type, with its namespaces.
template <class Axis>
consteval std::string_view spelling_of() {
  std::string_view words = std::source_location::current().function_name();
  constexpr std::string_view before = "Axis = ";
  words.remove_prefix(words.find(before) + before.size());
  return words.substr(0, words.find_first_of(";]"));
}

}  // namespace detail

/// The name of an axis as messages have it: its type's, without namespaces.
template <class Axis>
[[nodiscard]] consteval std::string_view axis_name() {
  std::string_view name = detail::spelling_of<Axis>();
  if (const auto colon = name.rfind("::"); colon != name.npos && name.find('<') == name.npos)
    name.remove_prefix(colon + 2);
  return name;
}

}  // namespace distx
