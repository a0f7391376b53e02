// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "distx/distx.hpp"

// The operands and results of reductions, computed independently in double from integers small enough that every type
// represents every intermediate result exactly.
namespace conformance {

inline constexpr std::size_t sizes[] = {0, 1, 7, 1024, 100003};
inline constexpr std::size_t largest = 100003;
/// The period of the operands, a prime, so that a misplaced piece is detected.
inline constexpr std::size_t period = 1021;

/// Composition of maps x -> a x + b modulo 8 (a odd), written 8 a + b: associative, not commutative.
struct Compose {
  template <class T>
  constexpr T operator()(T outer, T inner) const {
    const auto f = static_cast<unsigned>(outer), g = static_cast<unsigned>(inner);
    return static_cast<T>((f / 8 * (g / 8)) % 8 * 8 + (f / 8 * (g % 8) + f % 8) % 8);
  }
};

/// The reference for an op: its operands, and how two of them combine in rank order.
struct Reference {
  const char* name;
  double (*operand)(std::size_t rank, std::size_t index, bool is_signed);
  double (*combine)(double, double);
  bool divides = false;
};

inline double small_operand(std::size_t rank, std::size_t index, bool is_signed) {
  return static_cast<double>((rank * 7 + index * 3 + index / 5) % 11) - (is_signed ? 5 : 0);
}
// At most three of seven ranks have a factor other than 1 and -1, so that int8 holds the product.
inline double factor_operand(std::size_t rank, std::size_t index, bool is_signed) {
  const double magnitude = (rank + index) % 3 == 0 ? static_cast<double>(2 + index % 2) : 1;
  return is_signed && (rank * 5 + index) % 4 == 0 ? -magnitude : magnitude;
}
inline double map_operand(std::size_t rank, std::size_t index, bool) {
  return static_cast<double>((2 * ((rank + index) % 4) + 1) * 8 + (rank * 3 + index * 5) % 8);
}

inline constexpr Reference reference_sum{"sum", small_operand, [](double a, double b) { return a + b; }};
inline constexpr Reference reference_product{"product", factor_operand, [](double a, double b) { return a * b; }};
inline constexpr Reference reference_min{"min", small_operand, [](double a, double b) { return std::min(a, b); }};
inline constexpr Reference reference_max{"max", small_operand, [](double a, double b) { return std::max(a, b); }};
inline constexpr Reference reference_average{"average", small_operand, reference_sum.combine, true};
inline constexpr Reference reference_compose{"compose", map_operand,
                                             [](double a, double b) { return Compose{}(a, b); }};

/// Calls `f.template operator()<T>()` for every element type that holds the references exactly.
template <class F>
void for_each_element(F&& f) {
  f.template operator()<std::int8_t>();
  f.template operator()<std::uint8_t>();
  f.template operator()<std::int16_t>();
  f.template operator()<std::uint16_t>();
  f.template operator()<std::int32_t>();
  f.template operator()<std::uint32_t>();
  f.template operator()<std::int64_t>();
  f.template operator()<std::uint64_t>();
  f.template operator()<distx::bfloat16>();
  f.template operator()<distx::float16>();
  f.template operator()<float>();
  f.template operator()<double>();
}

/// Calls `f(op, reference)` for every op that reduces `T`.
template <class T, class F>
void for_each_op(F&& f) {
  f(distx::sum, reference_sum);
  f(distx::product, reference_product);
  f(distx::min, reference_min);
  f(distx::max, reference_max);
  f(Compose{}, reference_compose);
  if constexpr (distx::FloatingElement<T>) f(distx::average, reference_average);
}

template <class T>
inline constexpr bool is_signed_element = distx::FractionalElement<T> || std::is_signed_v<T>;

/// Returns the value in `T`, rounded once.
template <class T>
T element(double value) {
  return static_cast<T>(static_cast<distx::accumulator_t<T>>(value));
}

/// Returns one period of a rank's operands.
template <class T>
std::vector<T> operands(const Reference& reference, int rank) {
  std::vector<T> values(period);
  for (std::size_t i = 0; i < period; ++i)
    values[i] = element<T>(reference.operand(static_cast<std::size_t>(rank), i, is_signed_element<T>));
  return values;
}

/// Returns one period of the result over `ranks` ranks.
template <class T>
std::vector<T> results(const Reference& reference, int ranks) {
  std::vector<T> values(period);
  for (std::size_t i = 0; i < period; ++i) {
    double result = reference.operand(0, i, is_signed_element<T>);
    for (int rank = 1; rank < ranks; ++rank)
      result = reference.combine(result, reference.operand(static_cast<std::size_t>(rank), i, is_signed_element<T>));
    // Double has more than twice float's bits, so rounding its quotient of exact integers gives float's quotient.
    values[i] = element<T>(reference.divides ? result / ranks : result);
  }
  return values;
}

/// Returns elements [first, first + count) of the infinite repetition of `one_period`.
template <class T>
std::vector<T> repeated(const std::vector<T>& one_period, std::size_t count, std::size_t first = 0) {
  std::vector<T> values;
  values.reserve(count);
  for (std::size_t at = first % period; values.size() < count; at = 0) {
    const auto begin = one_period.begin() + static_cast<std::ptrdiff_t>(at);
    values.insert(values.end(), begin,
                  begin + static_cast<std::ptrdiff_t>(std::min(period - at, count - values.size())));
  }
  return values;
}

/// Writes bytes that identify source, destination and call.
inline void write_pattern(std::span<std::byte> to, std::size_t source, std::size_t destination, std::size_t call) {
  constexpr std::size_t cycle = 509;
  std::uint32_t state = static_cast<std::uint32_t>(source * 7919 + destination * 104729 + call * 1299709 + 1);
  for (std::size_t i = 0; i < std::min(cycle, to.size()); ++i) {
    state = state * 1664525u + 1013904223u;
    to[i] = static_cast<std::byte>(state >> 24);
  }
  for (std::size_t done = cycle; done < to.size(); done *= 2)
    std::memcpy(to.data() + done, to.data(), std::min(done, to.size() - done));
}

template <class T>
std::vector<T> pattern(std::size_t count, int source, int destination = 0, std::size_t call = 0) {
  std::vector<T> values(count);
  write_pattern(std::as_writable_bytes(std::span(values)), static_cast<std::size_t>(source),
                static_cast<std::size_t>(destination), call);
  return values;
}

template <class T>
void append(std::vector<T>& to, const std::vector<T>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

/// Returns counts that differ by rank, some of them zero.
inline std::vector<std::size_t> uneven_counts(int ranks) {
  std::vector<std::size_t> counts;
  for (int rank = 0; rank < ranks; ++rank)
    counts.push_back(rank % 3 == 1 ? 0 : static_cast<std::size_t>(rank) * 37 + 5);
  return counts;
}

}  // namespace conformance
