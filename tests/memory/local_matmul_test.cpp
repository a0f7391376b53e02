// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/memory/local_matmul.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace {

template <class T>
std::vector<T> numbers(std::size_t n, double seed) {
  std::vector<T> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<T>(std::sin(seed + 1.7 * static_cast<double>(i)));
  return values;
}

/// Against sums in double, one element after another; the error of each sum is that of its roundings, at most.
template <class T>
void check(std::size_t rows, std::size_t inner, std::size_t columns, bool left_transposed, bool right_transposed,
           bool out_transposed, T scale, T keep) {
  const auto a = numbers<T>(rows * inner, 1);
  const auto b = numbers<T>(inner * columns, 2);
  const auto before = numbers<T>(rows * columns, 3);
  auto c = before;
  const distx::MatrixRef<const T> left{a, rows, inner, left_transposed};
  const distx::MatrixRef<const T> right{b, inner, columns, right_transposed};
  const distx::MatrixRef<T> out{c, rows, columns, out_transposed};
  distx::local_matmul(distx::HostStream{}, out, left, right, scale, keep);
  const double bound = static_cast<double>(inner + 4) * static_cast<double>(inner + 1) *
                           std::abs(static_cast<double>(scale)) * std::numeric_limits<T>::epsilon() +
                       8 * std::numeric_limits<T>::epsilon();
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < columns; ++j) {
      const T* place = out.at(i, j);
      double sum = 0;
      for (std::size_t k = 0; k < inner; ++k) sum += static_cast<double>(*left.at(i, k)) * *right.at(k, j);
      const double expected = static_cast<double>(keep) * before[static_cast<std::size_t>(place - c.data())] +
                              static_cast<double>(scale) * sum;
      if (!(std::abs(*place - expected) <= bound)) ++wrong;
    }
  CAPTURE(rows);
  CAPTURE(inner);
  CAPTURE(columns);
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE_TEMPLATE("local_matmul matches the definition for any shape and memory order", T, float, double) {
  for (const std::size_t rows : {1u, 5u, 67u})
    for (const std::size_t inner : {1u, 9u, 260u})
      for (const std::size_t columns : {1u, 8u, 13u})
        for (int order = 0; order < 8; ++order)
          check<T>(rows, inner, columns, (order & 1) != 0, (order & 2) != 0, (order & 4) != 0, T(1), T(0));
  check<T>(130, 300, 270, false, true, false, T(-0.5), T(2));
  check<T>(3, 0, 2, false, false, false, T(1), T(0.5));
  check<T>(0, 3, 2, false, false, false, T(1), T(0));
}

TEST_CASE_TEMPLATE("each term of a product is added with one rounding by wide vector registers, with two by others", T,
                   float, double) {
  const std::size_t widest = distx::detail::lane_bytes();
  for (const auto& [rows, inner, columns] : {std::array{1, 1, 1}, {5, 9, 13}, {67, 300, 270}, {8, 64, 64}}) {
    const auto m = static_cast<std::size_t>(rows), k = static_cast<std::size_t>(inner),
               n = static_cast<std::size_t>(columns);
    const auto a = numbers<T>(m * k, 1), b = numbers<T>(k * n, 2);
    const auto product = [&](std::size_t bytes) {
      distx::detail::lane_bytes() = bytes;
      std::vector<T> c(m * n);
      distx::local_matmul(distx::HostStream{}, distx::MatrixRef<T>{c, m, n}, {a, m, k}, {b, k, n}, T(0.7));
      distx::detail::lane_bytes() = widest;
      return c;
    };
    const auto expected = [&](bool fused) {
      std::vector<T> c(m * n);
      for (std::size_t i = 0; i < m * n; ++i)
        for (std::size_t block = 0; block < k; block += 256) {
          T sum = 0;
          for (std::size_t p = block; p < std::min(block + 256, k); ++p) {
            const T left = T(0.7) * a[i / n * k + p], right = b[p * n + i % n];
            const volatile T term = left * right;
            sum = fused ? std::fma(left, right, sum) : sum + term;
          }
          c[i] += sum;
        }
      return c;
    };
    for (std::size_t bytes = 16; bytes <= widest; bytes *= 2) CHECK(product(bytes) == expected(bytes > 16));
  }
}

TEST_CASE("with keep = 0 old values are not read") {
  std::vector<float> out(1, std::numeric_limits<float>::quiet_NaN());
  const std::vector<float> two{2};
  distx::local_matmul(distx::HostStream{}, distx::MatrixRef<float>{out, 1, 1}, {two, 1, 1}, {two, 1, 1});
  CHECK(out[0] == 4);
}

TEST_CASE("shapes that do not fit throw InvalidArgument") {
  std::vector<float> six(6);
  std::vector<float> four(4);
  const auto refusal = [&](std::size_t left_columns, std::size_t out_columns) -> std::string {
    try {
      distx::local_matmul(distx::HostStream{}, distx::MatrixRef<float>{four, 2, out_columns}, {six, 2, left_columns},
                          {six, 3, 2});
    } catch (const distx::InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  };
  CHECK(refusal(3, 2) == "accepted");
  CHECK(refusal(2, 2).find("local_matmul: cannot multiply 2 x 2 by 3 x 2 into 2 x 2") != std::string::npos);
  CHECK(refusal(3, 3).find("into 2 x 3") != std::string::npos);
}
