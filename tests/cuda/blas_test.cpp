// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Products by cuBLAS against sums in double, for every order in memory.
#include <distx/cuda/blas.hpp>

#include <thread>

#include "cuda/placed.hpp"

namespace {

using distx::bfloat16;
using distx::Cuda;
using distx::CudaStream;
using distx::float16;
using distx::MatrixRef;

template <class T>
void check(std::size_t rows, std::size_t inner, std::size_t columns, int order, float scale, float keep,
           double roundings = 4) {
  const auto a = wave<T>(rows * inner, 1), b = wave<T>(inner * columns, 2), before = wave<T>(rows * columns, 3);
  const Placed<T> left(a, 1), right(b, 2), out(before, 3);
  const bool left_transposed = (order & 1) != 0, right_transposed = (order & 2) != 0, transposed = (order & 4) != 0;
  const CudaStream stream;
  local_matmul(stream, MatrixRef<T, Cuda>{out.span(), rows, columns, transposed},
               MatrixRef<const T, Cuda>{left.in(), rows, inner, left_transposed},
               MatrixRef<const T, Cuda>{right.in(), inner, columns, right_transposed}, scale, keep);
  const auto found = out.values(stream);
  const MatrixRef<const T> l{a, rows, inner, left_transposed}, r{b, inner, columns, right_transposed};
  const MatrixRef<const T> o{found, rows, columns, transposed};
  // Each of the products and sums rounds once, in float or double; the result once more, in T.
  const double sums = 4 * static_cast<double>(inner + 4) * rounding<distx::accumulator_t<T>>;
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < columns; ++j) {
      double sum = 0, size = 0;
      for (std::size_t k = 0; k < inner; ++k) {
        const double product = static_cast<double>(*l.at(i, k)) * static_cast<double>(*r.at(k, j));
        sum += product;
        size += std::abs(product);
      }
      const T* place = o.at(i, j);
      const T was = before[static_cast<std::size_t>(place - found.data())];
      const double old = static_cast<double>(keep) * static_cast<double>(was);
      const double wanted = old + static_cast<double>(scale) * sum;
      const double bound = sums * (std::abs(static_cast<double>(scale)) * size + std::abs(old)) +
                           roundings * rounding<T> * std::max(1e-3, std::abs(wanted));
      if (!(std::abs(static_cast<double>(*place) - wanted) <= bound)) ++wrong;
    }
  CAPTURE(rows);
  CAPTURE(inner);
  CAPTURE(columns);
  CAPTURE(order);
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE_TEMPLATE("local_matmul equals the definition for every shape and memory order", T, float, double, bfloat16,
                   float16) {
  for (int order = 0; order < 8; ++order) {
    check<T>(3, 5, 2, order, 1, 0);
    check<T>(1, 7, 9, order, -0.5f, 2);
    check<T>(33, 65, 17, order, 1, 1);
  }
}

TEST_CASE_TEMPLATE("local_matmul of floats by a 16-bit type rounds the floats to it, and sums in float", T, bfloat16,
                   float16) {
  constexpr std::size_t rows = 33, inner = 65, columns = 17;
  for (int order = 0; order < 8; ++order) {
    CAPTURE(order);
    const bool left_transposed = (order & 1) != 0, right_transposed = (order & 2) != 0, transposed = (order & 4) != 0;
    const auto a = wave<float>(rows * inner, 1);
    const auto b = wave<T>(inner * columns, 2);
    const Placed<float> left(a, 1), out(std::vector<float>(rows * columns, std::nanf("")), 3);
    const Placed<T> right(b, 2);
    const CudaStream stream;
    local_matmul(stream, MatrixRef<float, Cuda>{out.span(), rows, columns, transposed},
                 MatrixRef<const float, Cuda>{left.in(), rows, inner, left_transposed},
                 MatrixRef<const T, Cuda>{right.in(), inner, columns, right_transposed});
    const auto found = out.values(stream);
    const MatrixRef<const float> l{a, rows, inner, left_transposed}, o{found, rows, columns, transposed};
    const MatrixRef<const T> r{b, inner, columns, right_transposed};
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < columns; ++j) {
        double sum = 0, size = 0;
        for (std::size_t k = 0; k < inner; ++k) {
          const double product =
              static_cast<double>(static_cast<float>(T(*l.at(i, k)))) * static_cast<double>(*r.at(k, j));
          sum += product;
          size += std::abs(product);
        }
        if (!(std::abs(static_cast<double>(*o.at(i, j)) - sum) <= 4 * (inner + 4) * rounding<float> * size)) ++wrong;
      }
    CHECK(wrong == 0);
  }
  const CudaStream stream;
  const Placed<float> out(std::vector<float>(4, 7.0F));
  local_matmul(stream, MatrixRef<float, Cuda>{out.span(), 2, 2}, MatrixRef<const float, Cuda>{{}, 2, 0},
               MatrixRef<const T, Cuda>{{}, 0, 2});
  CHECK(out.values(stream) == std::vector<float>(4));
  CHECK_THROWS_AS(local_matmul(stream, MatrixRef<float, Cuda>{out.span(), 2, 2},
                               MatrixRef<const float, Cuda>{out.in(), 2, 2}, MatrixRef<const T, Cuda>{{}, 0, 2}),
                  distx::InvalidArgument);
}

TEST_CASE("local_matmul of empty matrices scales or does nothing") {
  check<float>(3, 0, 2, 0, 1, 0);
  check<float>(3, 0, 2, 4, 1, 0.5f);
  check<float>(0, 3, 2, 0, 1, 0);
  check<double>(4, 2, 0, 0, 1, 1);
}

TEST_CASE("local_matmul ignores old values if keep is 0") {
  const CudaStream stream;
  const Placed<float> out(std::vector<float>(4, std::nanf(""))), one(std::vector<float>{1, 2, 3, 4});
  const MatrixRef<float, Cuda> m{one.span(), 2, 2};
  local_matmul(stream, MatrixRef<float, Cuda>{out.span(), 2, 2}, m, m);
  CHECK(out.values(stream) == std::vector<float>{7, 10, 15, 22});
}

TEST_CASE("local_matmul rejects shapes that do not match") {
  const CudaStream stream;
  const Placed<float> four(std::vector<float>(4)), six(std::vector<float>(6));
  const MatrixRef<float, Cuda> square{four.span(), 2, 2}, wide{six.span(), 2, 3}, wrong{six.span(), 2, 2};
  CHECK_THROWS_AS(local_matmul(stream, square, wide, wide), distx::InvalidArgument);
  CHECK_THROWS_AS(local_matmul(stream, wrong, square, square), distx::InvalidArgument);
}

TEST_CASE("floats are rounded to TF32 only while this thread allows it") {
  using distx::cuda::detail::compute_type;
  CHECK(compute_type<float>() == CUBLAS_COMPUTE_32F);
  {
    const distx::cuda::AllowTF32 allow;
    CHECK(compute_type<float>() == CUBLAS_COMPUTE_32F_FAST_TF32);
    CHECK(compute_type<double>() == CUBLAS_COMPUTE_64F);
    std::thread([] { CHECK(compute_type<float>() == CUBLAS_COMPUTE_32F); }).join();
  }
  CHECK(compute_type<float>() == CUBLAS_COMPUTE_32F);
  // 1 + 2^-12 has more than TF32's ten bits of fraction.
  const CudaStream stream;
  const float exact = 1 + 0x1p-12f;
  const Placed<float> left(std::vector<float>(64 * 64, exact)), right([] {
    std::vector<float> identity(64 * 64);
    for (std::size_t i = 0; i < 64; ++i) identity[65 * i] = 1;
    return identity;
  }()),
      out(std::vector<float>(64 * 64));
  const auto square = [](const auto& values) { return MatrixRef<float, Cuda>{values.span(), 64, 64}; };
  local_matmul(stream, square(out), square(left), square(right));
  CHECK(out.values(stream) == std::vector<float>(64 * 64, exact));
}

TEST_CASE("each thread keeps its own cuBLAS handle") {
  const CudaStream stream;
  const auto mine = distx::cuda::detail::blas_handle(stream);
  CHECK(distx::cuda::detail::blas_handle({}) == mine);
  std::thread([&] { CHECK(distx::cuda::detail::blas_handle(stream) != mine); }).join();
}
