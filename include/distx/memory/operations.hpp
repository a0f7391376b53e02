// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "distx/core/error.hpp"
#include "distx/core/span.hpp"

// The operations of the host's memory. Another space offers the same names with its own stream as first argument.
namespace distx {

namespace detail {

[[noreturn]] inline void lengths_differ(std::size_t to, std::size_t from, const char* operation) {
  throw MismatchError("the destination has " + std::to_string(to) + " elements, the source " + std::to_string(from),
                      {.operation = operation});
}

}  // namespace detail

/// Copies elements; the spans may be the same, but must not overlap partly.
template <class T>
void copy(HostStream, Span<T> to, Span<const std::type_identity_t<T>> from) {
  if (to.size() != from.size()) detail::lengths_differ(to.size(), from.size(), "copy");
  if (!from.empty() && to.data() != from.data()) std::memcpy(to.data(), from.data(), from.size_bytes());
}

template <class T>
void fill(HostStream, Span<T> to, std::type_identity_t<T> value) {
  std::fill_n(to.data(), to.size(), value);
}

/// Converts each element, rounding to nearest where the new type is narrower.
template <class To, class From>
void cast(HostStream, Span<To> to, Span<From> from) {
  if (to.size() != from.size()) detail::lengths_differ(to.size(), from.size(), "cast");
  using Through = std::conditional_t<std::same_as<From, double> && std::same_as<To, double>, double,
                                     std::conditional_t<is_narrow_float(element_type<To>), float, To>>;
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = static_cast<To>(static_cast<Through>(from[i]));
}

/// Multiplies each value, in float where the elements are shorter.
template <FloatingElement T>
void scale(HostStream, Span<T> values, double factor) noexcept {
  using A = accumulator_t<T>;
  for (auto& value : values) value = static_cast<T>(static_cast<A>(value) * static_cast<A>(factor));
}

/// to[i] += from[i], in float where the elements are shorter.
template <FloatingElement T>
void add(HostStream, Span<T> to, Span<const std::type_identity_t<T>> from) {
  if (to.size() != from.size()) detail::lengths_differ(to.size(), from.size(), "add");
  using A = accumulator_t<T>;
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = static_cast<T>(static_cast<A>(to[i]) + static_cast<A>(from[i]));
}

/// to[i] = kept * to[i] + (1 - kept) * from[i], in the type of `to`.
template <FloatingElement To, FloatingElement From>
void mix(HostStream, Span<To> to, Span<const From> from, double kept) {
  if (to.size() != from.size()) detail::lengths_differ(to.size(), from.size(), "mix");
  using A = accumulator_t<To>;
  const auto keep = static_cast<A>(kept);
  for (std::size_t i = 0; i < to.size(); ++i)
    to[i] = static_cast<To>(keep * static_cast<A>(to[i]) +
                            (A{1} - keep) * static_cast<A>(static_cast<accumulator_t<From>>(from[i])));
}

/// The sum of the squares, in double, element by element from the first: the same bits for the same elements.
template <class T>
[[nodiscard]] double sum_of_squares(HostStream, Span<T> values) {
  double total = 0;
  for (const auto value : values) total += static_cast<double>(value) * static_cast<double>(value);
  return total;
}

}  // namespace distx
