// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "standin/arrays.hpp"
#include "standin/standin.hpp"

using namespace standin;

namespace {

struct OwnHandle {
  OwnHandle() { REQUIRE(cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS); }
  OwnHandle(const OwnHandle&) = delete;
  OwnHandle& operator=(const OwnHandle&) = delete;
  ~OwnHandle() { CHECK(cublasDestroy(handle) == CUBLAS_STATUS_SUCCESS); }
  cublasHandle_t handle = nullptr;
};

constexpr int m = 3, n = 4, k = 5;

float left(int row, int inner) { return static_cast<float>(1 + row * k + inner); }
float right(int inner, int column) { return static_cast<float>(2 + inner - column * 2); }
float product(int row, int column) {
  float sum = 0;
  for (int i = 0; i < k; ++i) sum += left(row, i) * right(i, column);
  return sum;
}

/// Column after column, or row after row, with a leading dimension that is one larger than it needs to be.
template <class T, class F>
std::vector<T> laid_out(int rows, int columns, bool transposed, const F& element) {
  const int leading = (transposed ? columns : rows) + 1;
  const int other = transposed ? rows : columns;
  std::vector<T> values(static_cast<std::size_t>(leading * other), T(0.0F));
  for (int row = 0; row < rows; ++row)
    for (int column = 0; column < columns; ++column) {
      const int at = transposed ? row * leading + column : column * leading + row;
      values[static_cast<std::size_t>(at)] = T(element(row, column));
    }
  return values;
}

template <class T, class Multiply>
void check(bool of_left, bool of_right, const Multiply& multiply) {
  const OwnHandle own;
  const OwnStream stream;
  REQUIRE(cublasSetStream(own.handle, stream) == CUBLAS_STATUS_SUCCESS);
  const auto a = array_of(laid_out<T>(m, k, of_left, left));
  const auto b = array_of(laid_out<T>(k, n, of_right, right));
  const auto c = array_of(std::vector<T>(static_cast<std::size_t>((m + 1) * n), T(1.0F)));
  CHECK(multiply(own.handle, of_left ? CUBLAS_OP_T : CUBLAS_OP_N, of_right ? CUBLAS_OP_T : CUBLAS_OP_N, a.data(),
                 of_left ? k + 1 : m + 1, b.data(), of_right ? n + 1 : k + 1, c.data(),
                 m + 1) == CUBLAS_STATUS_SUCCESS);
  stream.synchronize();
  const auto got = c.download();
  for (int row = 0; row < m; ++row)
    for (int column = 0; column < n; ++column)
      CHECK(static_cast<double>(static_cast<float>(got[static_cast<std::size_t>(column * (m + 1) + row)])) ==
            doctest::Approx(static_cast<double>(2 * product(row, column) + 3)).epsilon(0.01));
  CHECK(static_cast<float>(got[static_cast<std::size_t>(m)]) == 1);  // between two columns
}

}  // namespace

TEST_CASE("products equal those of loops, transposed or not, in all types") {
  const float alpha = 2, beta = 3;
  const double alpha_in_double = 2, beta_in_double = 3;
  for (const bool of_left : {false, true})
    for (const bool of_right : {false, true}) {
      check<float>(of_left, of_right,
                   [&](auto handle, auto ta, auto tb, auto* a, int lda, auto* b, int ldb, auto* c, int ldc) {
                     return cublasSgemm(handle, ta, tb, m, n, k, &alpha, a, lda, b, ldb, &beta, c, ldc);
                   });
      check<double>(
          of_left, of_right, [&](auto handle, auto ta, auto tb, auto* a, int lda, auto* b, int ldb, auto* c, int ldc) {
            return cublasDgemm(handle, ta, tb, m, n, k, &alpha_in_double, a, lda, b, ldb, &beta_in_double, c, ldc);
          });
      const auto small = [&](cudaDataType_t type) {
        return [&, type](auto handle, auto ta, auto tb, auto* a, int lda, auto* b, int ldb, auto* c, int ldc) {
          return cublasGemmEx(handle, ta, tb, m, n, k, &alpha, a, type, lda, b, type, ldb, &beta, c, type, ldc,
                              CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
        };
      };
      check<__nv_bfloat16>(of_left, of_right, small(CUDA_R_16BF));
      check<__half>(of_left, of_right, small(CUDA_R_16F));
    }
}

TEST_CASE("a product in TF32 rounds its operands to 10 bits of fraction, and sums in float") {
  const OwnHandle own;
  const float one = 1, none = 0;
  const auto a = array_of<float>({1 + 0x1p-12F, 0x1p-20F});
  const auto b = array_of<float>({1 + 0x1p-10F, 1});
  const auto c = array_of<float>({0});
  const auto multiply = [&](cublasComputeType_t compute) {
    REQUIRE(cublasGemmEx(own.handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 2, &one, a.data(), CUDA_R_32F, 1, b.data(),
                         CUDA_R_32F, 2, &none, c.data(), CUDA_R_32F, 1, compute,
                         CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS);
    REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
    return c.download()[0];
  };
  CHECK(multiply(CUBLAS_COMPUTE_32F) == (1 + 0x1p-12F) * (1 + 0x1p-10F) + 0x1p-20F);
  CHECK(multiply(CUBLAS_COMPUTE_32F_FAST_TF32) == 1 + 0x1p-10F + 0x1p-20F);
}

TEST_CASE("a product does not read its result if beta is zero, and rejects invalid matrices") {
  const Live before = live();
  {
    const OwnHandle own;
    const float one = 1, none = 0;
    const auto a = array_of<float>({2});
    const auto c = array_of<float>({std::numeric_limits<float>::quiet_NaN()});
    const auto multiply = [&](int rows, int leading, const float* from, float* to) {
      return cublasSgemm(own.handle, CUBLAS_OP_N, CUBLAS_OP_N, rows, 1, 1, &one, from, leading, a.data(), 1, &none, to,
                         leading);
    };
    CHECK(multiply(1, 1, a.data(), c.data()) == CUBLAS_STATUS_SUCCESS);
    REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
    CHECK(c.download()[0] == 4);
    CHECK(multiply(-1, 1, a.data(), c.data()) == CUBLAS_STATUS_INVALID_VALUE);
    CHECK(multiply(2, 1, a.data(), c.data()) == CUBLAS_STATUS_INVALID_VALUE);
    CHECK(multiply(2, 2, a.data(), c.data()) == CUBLAS_STATUS_EXECUTION_FAILED);  // beyond the arrays
    CHECK(multiply(1, 1, &one, c.data()) == CUBLAS_STATUS_EXECUTION_FAILED);
    CHECK(multiply(0, 1, nullptr, nullptr) == CUBLAS_STATUS_SUCCESS);
    CHECK(live().cublas_handles == before.cublas_handles + 1);
    fail_next("cublasSgemm", CUBLAS_STATUS_INTERNAL_ERROR);
    CHECK(multiply(1, 1, a.data(), c.data()) == CUBLAS_STATUS_INTERNAL_ERROR);
    CHECK(std::string(cublasGetStatusName(CUBLAS_STATUS_INTERNAL_ERROR)) == "CUBLAS_STATUS_INTERNAL_ERROR");
  }
  CHECK(live() == before);
  CHECK(cublasDestroy(nullptr) == CUBLAS_STATUS_NOT_INITIALIZED);
}
