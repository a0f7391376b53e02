// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "distx/core/error.hpp"
#include "distx/core/span.hpp"
#include "distx/memory/detail/moving_average.hpp"

// Operations on host memory. Another memory space overloads the same names on its stream type, which is how generic
// code finds them (argument-dependent lookup). On the host each is complete when it returns; on other spaces it is
// stream-ordered.
namespace distx::inline DISTX_ABI {

namespace detail {

[[noreturn]] inline void lengths_differ(std::size_t to, std::size_t from, const char* operation) {
  throw InvalidArgument("the destination has " + std::to_string(to) + " elements, the source " + std::to_string(from) +
                            ": they must have the same length",
                        {.operation = operation});
}

struct AddLanes {
  template <std::size_t Bytes, class T>
  static void run(T* to, const T* from, std::size_t count) {
    using V = Lanes<T, Bytes>;
    std::size_t i = 0;
    for (; i + V::size <= count; i += V::size) (V::load(to + i) + V::load(from + i)).store(to + i);
    for (; i < count; ++i) to[i] += from[i];
  }
};

struct MixLanes {
  template <std::size_t Bytes, class T>
  static void run(T* to, const T* from, std::size_t count, const MovingAverage<T>& mean) {
    const auto mix_at = [=]<class V>(std::size_t i, V mixed) {
      mixed = V::load(to + i);
      mean.add(mixed, V::load(from + i));
      mixed.store(to + i);
    };
    using V = Lanes<T, Bytes>;
    std::size_t i = 0;
    for (; i + V::size <= count; i += V::size) mix_at(i, V());
    for (; i < count; ++i) mix_at(i, Lanes<T, sizeof(T)>());
  }
};

}  // namespace detail

/// Copies the elements of `from` to `to`, which may be the same span but must not overlap partly.
/// @throws InvalidArgument unless they have the same length
template <class T>
void copy(HostStream, Span<T> to, Span<const std::type_identity_t<T>> from) {
  if (to.size() != from.size()) detail::lengths_differ(to.size(), from.size(), "copy");
  if (!from.empty() && to.data() != from.data()) std::memcpy(to.data(), from.data(), from.size_bytes());
}

/// Sets every element of `to` to `value`.
template <class T>
void fill(HostStream, Span<T> to, std::type_identity_t<T> value) {
  std::fill_n(to.data(), to.size(), value);
}

/// Converts each element of `from` to the type of `to`, rounding to nearest if that is narrower.
/// @throws InvalidArgument unless they have the same length
template <class To, class From>
void cast(HostStream, Span<To> to, Span<From> from) {
  if (to.size() != from.size()) detail::lengths_differ(to.size(), from.size(), "cast");
  using Through = std::conditional_t<std::same_as<From, double> && std::same_as<To, double>, double,
                                     std::conditional_t<is_narrow_float(element_type<To>), float, To>>;
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = static_cast<To>(static_cast<Through>(from[i]));
}

/// Multiplies each value by `factor`; floats of fewer than 32 bits are computed in float and rounded once.
template <FloatingElement T>
void scale(HostStream, Span<T> values, double factor) noexcept {
  using A = accumulator_t<T>;
  for (auto& value : values) value = static_cast<T>(static_cast<A>(value) * static_cast<A>(factor));
}

/// Adds `from` to `to` element by element; floats of fewer than 32 bits are computed in float and rounded once.
/// @throws InvalidArgument unless they have the same length
template <FloatingElement T>
void add(HostStream, Span<T> to, Span<const std::type_identity_t<T>> from) {
  if (to.size() != from.size()) detail::lengths_differ(to.size(), from.size(), "add");
  using A = accumulator_t<T>;
  if constexpr (std::same_as<T, A>)
    return detail::run_on_lanes<detail::AddLanes>(detail::lane_bytes(), to.data(), from.data(), to.size());
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = static_cast<T>(static_cast<A>(to[i]) + static_cast<A>(from[i]));
}

/// Computes to[i] = kept * to[i] + (1 - kept) * from[i], in the accumulator type of `to`.
/// @throws InvalidArgument unless they have the same length
template <FloatingElement To, FloatingElement From>
void mix(HostStream, Span<To> to, Span<const From> from, double kept) {
  if (to.size() != from.size()) detail::lengths_differ(to.size(), from.size(), "mix");
  using A = accumulator_t<To>;
  const auto mixture = detail::MovingAverage<A>::keeping(kept);
  if constexpr (std::same_as<To, A> && std::same_as<From, A>)
    return detail::run_on_lanes<detail::MixLanes>(detail::lane_bytes(), to.data(), from.data(), to.size(), mixture);
  const auto mix_all = [&]<bool OfAverage>() {
    const detail::MovingAverage<A> mean{mixture.weight, OfAverage};
    for (std::size_t i = 0; i < to.size(); ++i) {
      auto mixed = static_cast<A>(to[i]);
      mean.add(mixed, static_cast<A>(static_cast<accumulator_t<From>>(from[i])));
      to[i] = static_cast<To>(mixed);
    }
  };
  // Two loops: one would decide at each element.
  if (mixture.of_average)
    mix_all.template operator()<true>();
  else
    mix_all.template operator()<false>();
}

/// Returns the sum of the squares of `values`, added in double in index order: the same elements give the same bits.
template <class T>
[[nodiscard]] double sum_of_squares(HostStream, Span<T> values) {
  double total = 0;
  for (const auto value : values) total += static_cast<double>(value) * static_cast<double>(value);
  return total;
}

}  // namespace distx::inline DISTX_ABI
