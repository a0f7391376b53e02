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
#include "distx/memory/local_matmul.hpp"

// Sums whose error does not grow with their length, and exponentials, on vectors of doubles. Terms are added in 8
// chains a block, and blocks in pairs: an order that depends on the number of terms alone, so every width of vector
// registers gives the same bits. See docs/numerics.md. Functions with a parameter Bytes are called by `run_on_lanes`.
namespace distx::inline DISTX_ABI::detail {

/// The type in which terms of T are added: double, or T if it is an integer.
template <class T>
using sum_t = std::conditional_t<std::integral<T>, T, double>;

inline constexpr std::size_t terms_in_block = 4096;

DISTX_KERNELS_BEGIN

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
  friend OneLane operator/(OneLane a, OneLane b) { return OneLane(a.value_ / b.value_); }
  OneLane& operator+=(OneLane b) { return *this = *this + b; }

 private:
  double value_;
};

template <class T, std::size_t Count>
struct StoredVector {
  typedef T type [[gnu::vector_size(Count * sizeof(T))]];
};
/// Converts each number of a vector. Vectors are not returned: the registers that return one depend on the processor.
template <class From, class To>
void convert_each(const From& from, To& to) {
  if constexpr (splits_conversions && has_wide_lanes && std::max(sizeof(To), sizeof(From)) > common_lane_bytes)
    convert(from, to);
  else
    to = __builtin_convertvector(from, To);
}
/// Reads numbers as a V, one for each lane.
template <class V, class T>
V wide(const T* from) {
  if constexpr (std::same_as<V, OneLane>) {
    return OneLane(static_cast<double>(*from));
  } else if constexpr (requires { V::load(from); }) {
    return V::load(from);
  } else {
    typename StoredVector<T, V::size>::type values;
    std::memcpy(&values, from, sizeof(values));
    typename V::native result;
    convert_each(values, result);
    return V::from_native(result);
  }
}
/// Writes a V as numbers.
template <class V, class T>
void narrow_to(T* to, const V& value) {
  if constexpr (std::same_as<V, OneLane>) {
    *to = static_cast<T>(value.value());
  } else if constexpr (requires { value.store(to); }) {
    value.store(to);
  } else {
    typename StoredVector<T, V::size>::type values;
    convert_each(value.to_native(), values);
    std::memcpy(to, &values, sizeof(values));
  }
}
/// Reads a vector of which only the first numbers may be before `end`.
template <class V, class T>
V wide_before(const T* end, const T* from) {
  if (end - from >= static_cast<std::ptrdiff_t>(V::size)) return wide<V>(from);
  T numbers[V::size] = {};
  std::copy(from, end, numbers);
  return wide<V>(numbers);
}
/// Writes the numbers of a vector that belong before `end`.
template <class V, class T>
void narrow_before(T* end, T* to, const V& value) {
  if (end - to >= static_cast<std::ptrdiff_t>(V::size)) return narrow_to(to, value);
  T numbers[V::size];
  narrow_to(numbers, value);
  std::copy_n(numbers, end - to, to);
}
/// Calls f(i, V()) for i in [0, n): V is a vector of doubles, or one double for the remainder.
template <std::size_t Bytes, class F>
void for_each_wide(std::size_t n, const F& f) {
  using V = Lanes<double, Bytes>;
  std::size_t i = 0;
  for (; i + V::size <= n; i += V::size) f(i, V());
  for (; i < n; ++i) f(i, OneLane());
}

/// Returns the sum of all lanes of some vectors, halves first: the lanes of all are one list.
template <std::size_t Bytes, std::size_t N>
double all_lanes(Lanes<double, Bytes> (&sums)[N]) {
  for (std::size_t half = N / 2; half > 0; half /= 2)
    for (std::size_t k = 0; k < half; ++k) sums[k] += sums[k + half];
  constexpr std::size_t size = Bytes / sizeof(double);
  double lanes[size];
  sums[0].store(lanes);
  if constexpr (size == 2) {
    return lanes[0] + lanes[1];
  } else {
    using Half = Lanes<double, Bytes / 2>;
    Half halves[] = {Half::load(lanes), Half::load(lanes + size / 2)};
    return all_lanes(halves);
  }
}
/// Returns the sum of the terms of a block, from i to `end`.
template <std::size_t Bytes, class Term>
double add_up_block(std::size_t i, std::size_t end, const Term& term) {
  using V = Lanes<double, Bytes>;
  constexpr std::size_t chains = 8, vectors = chains / V::size;
  double total = 0;
  if (end - i >= chains) {
    V sums[vectors];
    for (std::size_t k = 0; k < vectors; ++k) sums[k] = term(i + k * V::size, V());
    for (i += chains; i + chains <= end; i += chains)
      for (std::size_t k = 0; k < vectors; ++k) sums[k] += term(i + k * V::size, V());
    total = all_lanes(sums);
  }
  if (i < end) {
    OneLane rest = term(i, OneLane());
    while (++i < end) rest += term(i, OneLane());
    total += rest.value();
  }
  return total;
}
/// Returns term(0, V()) + … + term(n - 1, V()), where V is a vector of doubles, whose lanes are terms, or one.
template <std::size_t Bytes, class Term>
double add_up(std::size_t n, const Term& term) {
  double pairs[64];  // [k]: the sum of 2^k blocks
  for (std::size_t block = 0, i = 0;; ++block, i += terms_in_block) {
    const bool last = n - i <= terms_in_block;
    double total = add_up_block<Bytes>(i, last ? n : i + terms_in_block, term);
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

/// Returns total / divisor. Where it is rounded to float, a product, which takes less time, is as good.
template <class T, class V>
V quotient(const V& total, double divisor) {
  if constexpr (std::same_as<T, float>)
    return total * V(1 / divisor);
  else
    return total / V(divisor);
}
/// A row of n columns, of which some are computed at once.
template <std::size_t Bytes>
struct ColumnsAtOnce {
  std::size_t n;

  template <class T>
  struct Vectors {
    const T* numbers;

    template <class V>
    V at(std::size_t i, V) const {
      return wide<V>(numbers + i);
    }
  };
  template <class T>
  static Vectors<T> read(const T* row) {
    return {row};
  }
  template <class V, class T>
  static V of_column(const T* columns, std::size_t i) {
    return wide<V>(columns + i);
  }
  template <class V, class T>
  static void store(T* row, std::size_t i, const V& value) {
    narrow_to(row + i, value);
  }
  template <class F>
  void for_each(const F& f) const {
    for_each_wide<Bytes>(n, f);
  }
  template <class Term>
  [[nodiscard]] double sum(const Term& term) const {
    return add_up<Bytes>(n, term);
  }
  template <class T>
  static void store_result(T* to, double result) {
    *to = static_cast<T>(result);
  }
};
/// Rows of n columns, one in each lane. Of each row, everything is computed as by ColumnsAtOnce.
template <std::size_t Bytes>
struct RowsAtOnce {
  using Rows = Lanes<double, Bytes>;
  static constexpr std::size_t most_columns = 15;  // longer rows are less left of the last vector than whole vectors
  std::size_t n;

  struct GatheredRows {
    Rows numbers[most_columns];

    const Rows& at(std::size_t i, Rows) const { return numbers[i]; }
  };
  template <class T>
  [[nodiscard]] GatheredRows read(const T* rows) const {
    GatheredRows columns;
    for (std::size_t i = 0; i < n; ++i)
      columns.numbers[i] = [&]<std::size_t... K>(std::index_sequence<K...>) {
        const T numbers[] = {rows[K * n + i]...};
        return wide<Rows>(numbers);
      }(std::make_index_sequence<Rows::size>());
    return columns;
  }
  template <class V, class T>
  static V of_column(const T* columns, std::size_t i) {
    return V(static_cast<double>(columns[i]));
  }
  template <class V, class T>
  void store(T* rows, std::size_t i, const V& value) const {
    T numbers[V::size];
    narrow_to(numbers, value);
    [&]<std::size_t... K>(std::index_sequence<K...>) {
      ((rows[K * n + i] = numbers[K]), ...);
    }(std::make_index_sequence<V::size>());
  }
  template <class F>
  void for_each(const F& f) const {
    for (std::size_t i = 0; i < n; ++i) f(i, Rows());
  }
  template <class Term>
  [[nodiscard]] Rows sum(const Term& term) const {
    constexpr std::size_t chains = 8;
    Rows total(0.0);
    std::size_t i = 0;
    if (n >= chains) {
      Rows sums[chains];
      for (; i < chains; ++i) sums[i] = term(i, Rows());
      for (std::size_t half = chains / 2; half > 0; half /= 2)
        for (std::size_t k = 0; k < half; ++k) sums[k] += sums[k + half];
      total = sums[0];
    }
    if (i < n) {
      Rows rest = term(i, Rows());
      while (++i < n) rest += term(i, Rows());
      total += rest;
    }
    return total;
  }
  template <class T>
  static void store_result(T* to, const Rows& results) {
    narrow_to(to, results);
  }
};
/// Calls f(row, at_once) for the first of each group of rows that are computed at once: rows of more than `most`
/// columns, which is at most RowsAtOnce::most_columns, are computed one by one.
template <std::size_t Bytes, class F>
void for_each_row(std::size_t rows, std::size_t columns, const F& f,
                  std::size_t most = RowsAtOnce<Bytes>::most_columns) {
  constexpr std::size_t group = Lanes<double, Bytes>::size;
  std::size_t row = 0;
  if (columns <= most)
    for (; row + group <= rows; row += group) f(row, RowsAtOnce<Bytes>{columns});
  for (; row < rows; ++row) f(row, ColumnsAtOnce<Bytes>{columns});
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
  typedef std::uint64_t Bits [[gnu::vector_size(Bytes)]];
  constexpr double least = -708, log2_e = 0x1.71547652b82fep0;
  constexpr double ln2_high = 0x1.62e42fefap-1, ln2_low = 0x1.cf79abc9e3b3ap-40;
  // The last bits of a double of this size are those of the nearest integer. Another one gives that integer as a
  // double, because -ffast-math would cancel the sum and the difference of the same.
  constexpr double integral = 0x1.8p52;
  constexpr std::uint64_t away = 1 << 20;
  const Bits of_x = __builtin_bit_cast(Bits, x.to_native());
  const Bits below = -(__builtin_bit_cast(Bits, (x - V(least)).to_native()) >> 63);  // all bits, or none
  const Bits nan = -((0x7ff0000000000000U - (of_x << 1 >> 1)) >> 63);
  const Bits exponent = __builtin_bit_cast(Bits, (x * V(log2_e) + V(integral)).to_native());
  const V power = V::from_native(__builtin_bit_cast(typename V::native, exponent + away)) - V(integral + away);
  const V rest = (x - power * V(ln2_high)) - power * V(ln2_low);
  constexpr std::size_t degree = std::same_as<T, float> ? 8 : 13;
  const V mantissa = taylor_series(rest, std::make_index_sequence<degree>());
  const Bits scaled = __builtin_bit_cast(Bits, mantissa.to_native()) + (exponent << 52);
  return V::from_native(__builtin_bit_cast(typename V::native, (scaled & ~(below | nan)) | (of_x & nan)));
}
template <class T>
OneLane exponential(OneLane x) {
  return OneLane(exponential<T>(Lanes<double>(x.value()))[0]);
}

/// Rows of at most this many numbers are exponentiated several at a time: otherwise most of a short row would be what
/// is left of the last vector.
inline constexpr std::size_t short_row = 64;

/// Calls use(row, exponentials) with exp(x - origin(row)) of each row. @pre x has at most `short_row` columns
template <std::size_t Bytes, class T, class Origin, class Use>
void exponentials_of_short_rows(MatrixRef<const T> x, const Origin& origin, const Use& use) {
  using V = Lanes<double, Bytes>;
  const std::size_t n = x.columns, at_once = n == 0 ? x.rows : 4 * short_row / n;
  double numbers[4 * short_row + V::size];
  for (std::size_t begin = 0; begin < x.rows; begin += at_once) {
    const std::size_t end = std::min(x.rows, begin + at_once);
    double* each = numbers;
    for (std::size_t row = begin; row < end; ++row, each += n) {
      const T* const from = x.at(row, 0);
      const double zero = origin(row);
      for_each_wide<Bytes>(n, [=]<class W>(std::size_t i, W) { narrow_to(each + i, wide<W>(from + i) - W(zero)); });
    }
    std::fill_n(each, V::size, 0);  // for the last vector
    for (std::size_t i = 0; i < (end - begin) * n; i += V::size)
      exponential<T>(V::load(numbers + i)).store(numbers + i);
    each = numbers;
    for (std::size_t row = begin; row < end; ++row, each += n) use(row, each);
  }
}

/// Sets sums[row] to the sum of each row divided by `divisor`.
template <class T>
struct AddUpEachRow {
  template <std::size_t Bytes>
  static void run(const T* x, std::size_t rows, std::size_t columns, double divisor, T* sums) {
    for_each_row<Bytes>(rows, columns, [=](std::size_t row, auto at_once) {
      const auto numbers = at_once.read(x + row * columns);
      const auto total = at_once.sum([&](std::size_t i, auto v) { return numbers.at(i, v); });
      at_once.store_result(sums + row, quotient<T>(total, divisor));
    });
  }
};

/// Reduces the slices x[block, k, …] of each block in order: calls finish(at, nothing += x[block, 0, …] += …) for the
/// vectors at `at` of the results, in order, so that each may overwrite what follows those of its block.
template <class V, class T, class A, class Finish>
void reduce_each_block(const T* x, std::size_t blocks, std::size_t count, std::size_t size, const A& nothing,
                       const Finish& finish) {
  // Few rows at once, so that memory is read in its order; more of them where loading and storing an A takes more time.
  constexpr std::size_t n = V::size, weight = sizeof(A) / sizeof(V), rows_at_once = 8 * weight, width = 4 / weight * 32;
  const T* const end = x + blocks * count * size;
  std::size_t block = 0;
  if (size < 4 * n)  // without tests for the end
    for (; (blocks - block) * size > n + size; ++block, x += count * size)
      for (std::size_t i = 0; i < size; i += n) {
        A all = nothing;
        for (std::size_t k = 0; k < count; ++k) all += wide<V>(x + k * size + i);
        finish(block * size + i, all);
      }
  for (; block < blocks; ++block, x += count * size) {
    for (std::size_t begin = 0; begin < size; begin += width * n) {
      const std::size_t vectors = std::min(width, (size - begin + n - 1) / n);
      A all[width];
      std::fill_n(all, vectors, nothing);
      for (std::size_t row = 0; row < count; row += rows_at_once) {
        const std::size_t rows = std::min(rows_at_once, count - row);
        const T* from = x + row * size + begin;
        std::size_t k = 0;
        for (; begin + (k + 4) * n <= size && k < vectors; k += 4, from += 4 * n) {  // each operation takes some cycles
          A a = all[k], b = all[k + 1], c = all[k + 2], d = all[k + 3];
          for (std::size_t i = 0; i < rows; ++i) {
            a += wide<V>(from + i * size);
            b += wide<V>(from + i * size + n);
            c += wide<V>(from + i * size + 2 * n);
            d += wide<V>(from + i * size + 3 * n);
          }
          all[k] = a, all[k + 1] = b, all[k + 2] = c, all[k + 3] = d;
        }
        for (; k < vectors; ++k, from += n) {
          A each = all[k];
          for (std::size_t i = 0; i < rows; ++i) each += wide_before<V>(end, from + i * size);
          all[k] = each;
        }
      }
      for (std::size_t k = 0; k < vectors; ++k) finish(block * size + begin + k * n, all[k]);
    }
  }
}

/// Sets out[block, i] to the sum over k, in order, of x[block, k, i], divided by `divisor`.
template <class T>
struct AddUpEachBlock {
  template <std::size_t Bytes, class Out>
  static void run(const T* x, std::size_t blocks, std::size_t count, std::size_t size, double divisor, Out* out) {
    using V = Lanes<double, Bytes>;
    Out* const end = out + blocks * size;
    const double share = 1 / divisor;
    reduce_each_block<V>(x, blocks, count, size, V(0.0), [=](std::size_t at, const V& total) {
      narrow_before(end, out + at, std::same_as<T, float> ? total * V(share) : total / V(divisor));
    });
  }
};
DISTX_KERNELS_END

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
      run_on_lanes<AddUpEachBlock<T>>(lane_bytes(), x + begin * columns, std::size_t{1}, end - begin, columns, 1.0, to);
    } else {
      for (std::size_t i = begin * columns; i < end * columns; i += columns)
        for (std::size_t j = 0; j < columns; ++j)
          to[j] = static_cast<sum_t<T>>(to[j] + static_cast<accumulator_t<T>>(x[i + j]));
    }
  });
}

/// Rounds totals to the elements' type.
template <class T>
void round_to(const std::vector<sum_t<T>>& totals, Span<T> out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<T>(static_cast<accumulator_t<T>>(totals[i]));
}
/// Sets out[block, i] to the sum over k of x[block, k, i], divided by `divisor` unless it is of integers.
template <class T>
void sum_of_blocks(HostStream, Span<const T> x, std::size_t blocks, std::size_t count, std::size_t size, double divisor,
                   Span<T> out) {
  if constexpr (std::same_as<T, float> || std::same_as<T, double>) {
    if (size == 1) return run_on_lanes<AddUpEachRow<T>>(lane_bytes(), x.data(), blocks, count, divisor, out.data());
    if (count <= terms_in_block)
      return run_on_lanes<AddUpEachBlock<T>>(lane_bytes(), x.data(), blocks, count, size, divisor, out.data());
  }
  std::vector<sum_t<T>> totals(size);
  for (std::size_t block = 0; block < blocks; ++block) {
    add_up_rows(x.data() + block * count * size, count, size, totals.data());
    if constexpr (!std::integral<T>)
      for (double& total : totals) total /= divisor;
    round_to(totals, out.subspan(block * size, size));
  }
}

}  // namespace distx::inline DISTX_ABI::detail
