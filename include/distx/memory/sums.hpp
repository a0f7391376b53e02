// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <bit>
#include <concepts>
#include <type_traits>
#include <vector>

#include "distx/core/span.hpp"
#include "distx/memory/lanes.hpp"

// Sums whose error does not grow with their length: blocks of terms, which are then added in pairs. The order depends
// on the number of terms alone, so every width of vector registers gives the same bits. See docs/numerics.md.
namespace distx::detail {

/// The type in which terms of T are added: double, or T if it is an integer.
template <class T>
using sum_t = std::conditional_t<std::integral<T>, T, double>;
/// Converts an element exactly to the type in which it is added.
template <class T>
constexpr sum_t<T> term_of(T value) {
  return static_cast<sum_t<T>>(static_cast<accumulator_t<T>>(value));
}

inline constexpr std::size_t terms_in_block = 4096;

/// Where the second half of a sum of more than one block begins: the first half has 2^k blocks.
/// @pre terms > terms_in_block
constexpr std::size_t second_half(std::size_t terms) {
  return std::bit_floor((terms - 1) / terms_in_block) * terms_in_block;
}

/// Returns term(begin) + … + term(end - 1), calling `term` in this order. Terms of a block are added in 8 chains.
template <class Term>
sum_t<std::invoke_result_t<const Term&, std::size_t>> add_up(std::size_t begin, std::size_t end, const Term& term) {
  using A = sum_t<std::invoke_result_t<const Term&, std::size_t>>;
  if (end - begin > terms_in_block) {
    const std::size_t middle = begin + second_half(end - begin);
    const A first = add_up(begin, middle, term);
    return static_cast<A>(first + add_up(middle, end, term));
  }
  constexpr std::size_t chains = 8;
  A chain[chains] = {};
  std::size_t i = begin;
  for (; i + chains <= end; i += chains)
    for (std::size_t k = 0; k < chains; ++k) chain[k] = static_cast<A>(chain[k] + term_of(term(i + k)));
  for (std::size_t k = 0; i < end; ++i, ++k) chain[k] = static_cast<A>(chain[k] + term_of(term(i)));
  return static_cast<A>(((chain[0] + chain[1]) + (chain[2] + chain[3])) +
                        ((chain[4] + chain[5]) + (chain[6] + chain[7])));
}
/// Returns the sum of n numbers.
template <class T>
sum_t<T> add_up(const T* x, std::size_t n) {
  return add_up(0, n, [x](std::size_t i) { return x[i]; });
}

/// Adds up rows of `columns` terms into `totals`. `add(begin, end, totals)` adds the rows of one block to totals, row
/// by row.
template <class A, class Add>
void add_up_blocks(std::size_t begin, std::size_t end, std::size_t columns, A* totals, const Add& add) {
  if (end - begin > terms_in_block) {
    const std::size_t middle = begin + second_half(end - begin);
    add_up_blocks(begin, middle, columns, totals, add);
    std::vector<A> rest(columns);
    add_up_blocks(middle, end, columns, rest.data(), add);
    for (std::size_t i = 0; i < columns; ++i) totals[i] = static_cast<A>(totals[i] + rest[i]);
  } else {
    std::fill_n(totals, columns, A{});
    add(begin, end, totals);
  }
}

/// A vector of numbers as they are stored.
template <class T, std::size_t Count>
struct StoredVector {
  typedef T type [[gnu::vector_size(Count * sizeof(T))]];
};

/// Adds rows of floats or doubles to totals in double, several rows each time that a total is loaded.
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
  static constexpr std::size_t rows_at_once = 8, vectors = 2;

  template <std::size_t Bytes, std::size_t Rows>
  static void add(const T* x, std::size_t columns, double* totals) {
    using V = lanes::Lanes<double, Bytes>;
    using Stored = typename StoredVector<T, V::size>::type;
    std::size_t j = 0;
    for (; j + vectors * V::size <= columns; j += vectors * V::size) {
      V total[vectors];
      for (std::size_t k = 0; k < vectors; ++k) total[k] = V::load(totals + j + k * V::size);
      for (std::size_t row = 0; row < Rows; ++row)
        for (std::size_t k = 0; k < vectors; ++k) {
          Stored values;
          std::memcpy(&values, x + row * columns + j + k * V::size, sizeof(values));
          total[k] += V::from_native(__builtin_convertvector(values, typename V::native));
        }
      for (std::size_t k = 0; k < vectors; ++k) total[k].store(totals + j + k * V::size);
    }
    for (; j < columns; ++j)
      for (std::size_t row = 0; row < Rows; ++row) totals[j] += static_cast<double>(x[row * columns + j]);
  }
};

/// Adds up rows of `columns` elements into `totals`.
template <class T>
void add_up_rows(const T* x, std::size_t rows, std::size_t columns, sum_t<T>* totals) {
  add_up_blocks(0, rows, columns, totals, [&](std::size_t begin, std::size_t end, sum_t<T>* to) {
    if constexpr (std::same_as<T, float> || std::same_as<T, double>) {
      run_on_lanes<AddRows<T>>(lane_bytes(), x + begin * columns, end - begin, columns, to);
    } else {
      for (std::size_t i = begin * columns; i < end * columns; i += columns)
        for (std::size_t j = 0; j < columns; ++j) to[j] = static_cast<sum_t<T>>(to[j] + term_of(x[i + j]));
    }
  });
}

/// Rounds totals to the elements' type.
template <class T>
void round_to(const std::vector<sum_t<T>>& totals, Span<T> out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<T>(static_cast<accumulator_t<T>>(totals[i]));
}

}  // namespace distx::detail
