// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <bit>
#include <concepts>
#include <cstdint>
#include <iterator>
#include <type_traits>
#include <utility>
#include <vector>

#include "distx/core/span.hpp"
#include "distx/memory/lanes.hpp"

// Sums whose error does not grow with their length, and exponentials, on vectors of doubles. Terms are added in 8
// chains a block, and blocks in pairs: an order that depends on the number of terms alone, so every width of vector
// registers gives the same bits. See docs/numerics.md. Functions with a parameter Bytes are called by `run_on_lanes`.
namespace distx::detail {

/// The type in which terms of T are added: double, or T if it is an integer.
template <class T>
using sum_t = std::conditional_t<std::integral<T>, T, double>;

inline constexpr std::size_t terms_in_block = 4096;

/// One double that is computed with as vectors are: each operation rounds. Of plain doubles, clang fuses a product and
/// a sum where the processor can.
class OneLane {
 public:
  OneLane() = default;
  explicit OneLane(double value) : value_(value) {}
  [[nodiscard]] double value() const { return value_; }
  friend OneLane operator+(OneLane a, OneLane b) { return OneLane(a.value_ + b.value_); }
  friend OneLane operator-(OneLane a, OneLane b) { return OneLane(a.value_ - b.value_); }
  friend OneLane operator*(OneLane a, OneLane b) { return OneLane(a.value_ * b.value_); }
  OneLane& operator+=(OneLane b) { return *this = *this + b; }

 private:
  double value_;
};

template <class T, std::size_t Count>
struct StoredVector {
  typedef T type [[gnu::vector_size(Count * sizeof(T))]];
};
/// Reads floats or doubles as a V, one for each lane.
template <class V, class T>
V wide(const T* from) {
  if constexpr (std::same_as<V, OneLane>) {
    return OneLane(static_cast<double>(*from));
  } else if constexpr (std::same_as<T, double>) {
    return V::load(from);
  } else {
    typename StoredVector<T, V::size>::type values;
    std::memcpy(&values, from, sizeof(values));
    return V::from_native(__builtin_convertvector(values, typename V::native));
  }
}
/// Writes a V as floats or doubles.
template <class V, class T>
void narrow_to(T* to, const V& value) {
  if constexpr (std::same_as<V, OneLane>) {
    *to = static_cast<T>(value.value());
  } else if constexpr (std::same_as<T, double>) {
    value.store(to);
  } else {
    const auto values = __builtin_convertvector(value.to_native(), typename StoredVector<T, V::size>::type);
    std::memcpy(to, &values, sizeof(values));
  }
}
/// Calls f(i, V()) for i in [0, n): V is a vector of doubles, and for those that are left one.
template <std::size_t Bytes, class F>
void for_each_wide(std::size_t n, const F& f) {
  using V = Lanes<double, Bytes>;
  std::size_t i = 0;
  for (; i + V::size <= n; i += V::size) f(i, V());
  for (; i < n; ++i) f(i, OneLane());
}

/// Returns the sum of all lanes of some vectors, halves first: the lanes of all are one list.
template <class V, std::size_t N>
double all_lanes(V (&sums)[N]) {
  for (std::size_t half = N / 2; half > 0; half /= 2)
    for (std::size_t k = 0; k < half; ++k) sums[k] += sums[k + half];
  double lanes[V::size];
  sums[0].store(lanes);
  for (std::size_t half = V::size / 2; half > 0; half /= 2)
    for (std::size_t k = 0; k < half; ++k) lanes[k] += lanes[k + half];
  return lanes[0];
}
/// Returns term(0, V()) + … + term(n - 1, V()), where V is a vector of doubles, whose lanes are terms, or one.
template <std::size_t Bytes, class Term>
double add_up(std::size_t n, const Term& term) {
  using V = Lanes<double, Bytes>;
  constexpr std::size_t chains = 8, vectors = chains / V::size;
  double pairs[64];  // [k]: the sum of 2^k blocks
  for (std::size_t block = 0, i = 0;; ++block) {
    const std::size_t end = std::min(n, i + terms_in_block);
    V sums[vectors];
    for (std::size_t k = 0; k < vectors; ++k) sums[k] = V(0.0);
    for (; i + chains <= end; i += chains)
      for (std::size_t k = 0; k < vectors; ++k) sums[k] += term(i + k * V::size, V());
    double total = all_lanes(sums);
    if (i < end) {
      OneLane rest = term(i, OneLane());
      while (++i < end) rest += term(i, OneLane());
      total += rest.value();
    }
    const bool last = i == n;
    std::size_t k = 0;
    for (std::size_t earlier = block; earlier != 0 && (last || earlier % 2 != 0); earlier /= 2, ++k)
      if (earlier % 2 != 0) total = pairs[k] + total;
    if (last) return total;
    pairs[k] = total;
  }
}
template <std::size_t Bytes, class T>
double add_up(const T* x, std::size_t n) {
  return add_up<Bytes>(n, [x]<class V>(std::size_t i, V) { return wide<V>(x + i); });
}

/// 1 / K!
template <std::size_t K>
inline constexpr double inverse_factorial = inverse_factorial<K - 1> / static_cast<double>(K);
template <>
inline constexpr double inverse_factorial<0> = 1;

template <class V, std::size_t... I>
V taylor_series(const V& x, std::index_sequence<I...>) {
  V sum = inverse_factorial<sizeof...(I)>;
  ((sum = sum * x + V(inverse_factorial<sizeof...(I) - 1 - I>)), ...);
  return sum;
}
/// Returns the exponential of numbers that are at most 0, but for rounding: to the precision of T with some bits to
/// spare if that is float, and within an ulp or two if it is double; 0 below the normal doubles.
///
/// Without comparisons, which compilers take apart for the widest registers.
template <class T, std::size_t Bytes>
Lanes<double, Bytes> exponential(const Lanes<double, Bytes>& x) {
  using V = Lanes<double, Bytes>;
  using Integers = typename StoredVector<std::int32_t, V::size>::type;
  typedef std::uint64_t Bits [[gnu::vector_size(Bytes)]];
  constexpr double least = -708, log2_e = 0x1.71547652b82fep0;
  constexpr double ln2_high = 0x1.62e42fefap-1, ln2_low = 0x1.cf79abc9e3b3ap-40;
  const Bits of_x = __builtin_bit_cast(Bits, x.to_native());
  const Bits below = -(__builtin_bit_cast(Bits, (x - V(least)).to_native()) >> 63);  // all bits, or none
  const Bits nan = -((0x7ff0000000000000U - (of_x << 1 >> 1)) >> 63);
  const Bits kept = ~(below | nan);  // converted to an integer, the others would be undefined
  const V from = V::from_native(__builtin_bit_cast(typename V::native, of_x & kept));
  const auto exponent = __builtin_convertvector((from * V(log2_e) - V(0.5)).to_native(), Integers);
  const V power = V::from_native(__builtin_convertvector(exponent, typename V::native));
  const V rest = (from - power * V(ln2_high)) - power * V(ln2_low);
  constexpr std::size_t degree = std::same_as<T, float> ? 8 : 13;
  const V mantissa = taylor_series(rest, std::make_index_sequence<degree>());
  const Bits scaled = __builtin_bit_cast(Bits, mantissa.to_native()) + (__builtin_convertvector(exponent, Bits) << 52);
  return V::from_native(__builtin_bit_cast(typename V::native, (scaled & kept) | (of_x & nan)));
}
template <class T>
OneLane exponential(OneLane x) {
  return OneLane(exponential<T>(Lanes<double>(x.value()))[0]);
}

/// Adds rows of floats or doubles to totals, row by row.
template <class T>
struct AddRows {
  template <std::size_t Bytes>
  static void run(const T* x, std::size_t rows, std::size_t columns, double* totals) {
    std::size_t row = 0;
    for (; row + rows_at_once <= rows; row += rows_at_once)
      add<Bytes, rows_at_once>(x + row * columns, columns, totals);
    for (; row < rows; ++row) add<Bytes, 1>(x + row * columns, columns, totals);
  }

 private:
  static constexpr std::size_t rows_at_once = 8;  // while a total is in a register

  template <std::size_t Bytes, std::size_t Rows>
  static void add(const T* x, std::size_t columns, double* totals) {
    for_each_wide<Bytes>(columns, [=]<class V>(std::size_t i, V) {
      V total = wide<V>(totals + i);
      for (std::size_t row = 0; row < Rows; ++row) total += wide<V>(x + row * columns + i);
      narrow_to(totals + i, total);
    });
  }
};

/// Sets totals to sums of rows of `columns` terms. `add(begin, end, totals)` adds those of a block of rows, row by row.
template <class A, class Add>
void add_up_blocks(std::size_t begin, std::size_t end, std::size_t columns, A* totals, const Add& add) {
  if (end - begin > terms_in_block) {
    const std::size_t middle = begin + std::bit_floor((end - begin - 1) / terms_in_block) * terms_in_block;
    add_up_blocks(begin, middle, columns, totals, add);
    std::vector<A> rest(columns);
    add_up_blocks(middle, end, columns, rest.data(), add);
    for (std::size_t i = 0; i < columns; ++i) totals[i] = static_cast<A>(totals[i] + rest[i]);
  } else {
    std::fill_n(totals, columns, A{});
    add(begin, end, totals);
  }
}
/// Sets totals to the sums of the columns.
template <class T>
void add_up_rows(const T* x, std::size_t rows, std::size_t columns, sum_t<T>* totals) {
  add_up_blocks(0, rows, columns, totals, [&](std::size_t begin, std::size_t end, sum_t<T>* to) {
    if constexpr (std::same_as<T, float> || std::same_as<T, double>) {
      run_on_lanes<AddRows<T>>(lane_bytes(), x + begin * columns, end - begin, columns, to);
    } else {
      for (std::size_t i = begin * columns; i < end * columns; i += columns)
        for (std::size_t j = 0; j < columns; ++j)
          to[j] = static_cast<sum_t<T>>(to[j] + static_cast<accumulator_t<T>>(x[i + j]));
    }
  });
}
/// Sets sums[row] to the sum of each row divided by `divisor`.
template <class T>
struct AddUpEachRow {
  template <std::size_t Bytes>
  static void run(const T* x, std::size_t rows, std::size_t columns, double divisor, T* sums) {
    for (std::size_t row = 0; row < rows; ++row)
      sums[row] = static_cast<T>(add_up<Bytes>(x + row * columns, columns) / divisor);
  }
};

/// Sets out[block, i] to the sum over k of x[block, k, i], divided by `divisor`. @pre `totals` has `size` elements
template <class T>
struct AddUpEachBlock {
  template <std::size_t Bytes>
  static void run(const T* x, std::size_t blocks, std::size_t count, std::size_t size, double divisor, double* totals,
                  T* out) {
    for (std::size_t block = 0; block < blocks; ++block, x += count * size, out += size) {
      for (std::size_t i = 0; i < size; ++i) totals[i] = 0;
      if (size >= Lanes<double, Bytes>::size)
        AddRows<T>::template run<Bytes>(x, count, size, totals);
      else
        for (std::size_t i = 0; i < size; ++i)
          for (std::size_t k = 0; k < count; ++k) totals[i] += static_cast<double>(x[k * size + i]);
      for (std::size_t i = 0; i < size; ++i) out[i] = static_cast<T>(totals[i] / divisor);
    }
  }
};

/// Rounds totals to the elements' type.
template <class T>
void round_to(const std::vector<sum_t<T>>& totals, Span<T> out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<T>(static_cast<accumulator_t<T>>(totals[i]));
}

}  // namespace distx::detail
