// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// cuBLAS: products of matrices, which lie column after column.
#include "standin/cublas.hpp"

#include <cublas_api.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <map>
#include <type_traits>

#include "standin/device.hpp"
#include "standin/memory.hpp"
#include "standin/runtime.hpp"

namespace standin {

namespace {

struct Handle {
  int device = 0;
  cudaStream_t stream = nullptr;
};

struct Handles {
  std::mutex mutex;
  std::map<cublasHandle_t, Handle> alive;
  std::uintptr_t number = 0;
};

Handles& all() {
  static auto* handles = new Handles;
  return *handles;
}

template <class F>
cublasStatus_t cublas_called(const char* function, F&& f) {
  return called<cublasStatus_t>(function, [&] {
    try {
      std::forward<F>(f)();
    } catch (const Failure<cudaError_t>&) {
      fail(CUBLAS_STATUS_EXECUTION_FAILED);
    }
  });
}

/// Lets a function see or change what a handle stands for.
template <class F>
auto with(cublasHandle_t handle, F&& f) {
  const std::lock_guard lock(all().mutex);
  const auto found = all().alive.find(handle);
  require(found != all().alive.end(), CUBLAS_STATUS_NOT_INITIALIZED);
  return f(found->second);
}

/// One of the three matrices.
template <class Pointer>
struct Matrix {
  Pointer data;
  cudaDataType_t type;
  int leading;
};

struct Product {
  bool transposes_left;
  bool transposes_right;
  int rows;
  int columns;
  int inner;
  double alpha;
  double beta;
  Matrix<const void*> left;
  Matrix<const void*> right;
  Matrix<void*> result;
  bool in_double;
  bool in_tf32;
};

double element(const Matrix<const void*>& matrix, long long index) {
  switch (matrix.type) {
    case CUDA_R_16F:
      return static_cast<double>(static_cast<float>(static_cast<const __half*>(matrix.data)[index]));
    case CUDA_R_16BF:
      return static_cast<double>(static_cast<float>(static_cast<const __nv_bfloat16*>(matrix.data)[index]));
    case CUDA_R_64F:
      return static_cast<const double*>(matrix.data)[index];
    default:
      return static_cast<double>(static_cast<const float*>(matrix.data)[index]);
  }
}

void set(const Matrix<void*>& matrix, long long index, double value) {
  switch (matrix.type) {
    case CUDA_R_16F:
      static_cast<__half*>(matrix.data)[index] = __half(static_cast<float>(value));
      return;
    case CUDA_R_16BF:
      static_cast<__nv_bfloat16*>(matrix.data)[index] = __nv_bfloat16(static_cast<float>(value));
      return;
    case CUDA_R_64F:
      static_cast<double*>(matrix.data)[index] = value;
      return;
    default:
      static_cast<float*>(matrix.data)[index] = static_cast<float>(value);
  }
}

/// Rounds to the 10 bits of fraction of TF32, ties away from zero.
double to_tf32(double value) {
  const auto single = static_cast<float>(value);
  if (!std::isfinite(single)) return value;
  return static_cast<double>(std::bit_cast<float>((std::bit_cast<std::uint32_t>(single) + 0x1000U) & ~0x1FFFU));
}

template <class Sum>
void multiply_in(const Product& p) {
  const auto at = [](bool transposes, int row, int column, int leading) {
    return static_cast<long long>(transposes ? row : column) * leading + (transposes ? column : row);
  };
  const auto factor = [&](const Matrix<const void*>& matrix, long long index) {
    const double value = element(matrix, index);
    return p.in_tf32 ? to_tf32(value) : value;
  };
  for (int column = 0; column < p.columns; ++column)
    for (int row = 0; row < p.rows; ++row) {
      Sum sum = 0;
      for (int k = 0; k < p.inner; ++k)
        sum += static_cast<Sum>(factor(p.left, at(p.transposes_left, row, k, p.left.leading)) *
                                factor(p.right, at(p.transposes_right, k, column, p.right.leading)));
      const long long index = at(false, row, column, p.result.leading);
      Sum value = static_cast<Sum>(p.alpha) * sum;
      // Where beta is zero the result is not read: it may be anything.
      if (p.beta != 0)
        value += static_cast<Sum>(p.beta) *
                 static_cast<Sum>(element({p.result.data, p.result.type, p.result.leading}, index));
      set(p.result, index, static_cast<double>(value));
    }
}

std::size_t bytes_of(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_16F:
    case CUDA_R_16BF:
      return 2;
    case CUDA_R_32F:
      return 4;
    case CUDA_R_64F:
      return 8;
    default:
      fail(CUBLAS_STATUS_NOT_SUPPORTED);
  }
}

/// A GPU must be able to reach all of a matrix.
template <class Pointer>
void check(const Matrix<Pointer>& matrix, int rows, int columns) {
  require(matrix.leading >= (rows > 1 ? rows : 1), CUBLAS_STATUS_INVALID_VALUE);
  if (rows == 0 || columns == 0) return;
  const auto last = static_cast<long long>(columns - 1) * matrix.leading + rows;
  const Place where = place(matrix.data);
  // cuBLAS itself would not look, and end in an illegal access.
  require(where.kind == Kind::device || where.kind == Kind::pinned, CUBLAS_STATUS_EXECUTION_FAILED);
  require(where.left >= static_cast<std::size_t>(last) * bytes_of(matrix.type), CUBLAS_STATUS_EXECUTION_FAILED);
}

bool transposes(cublasOperation_t operation) {
  require(operation == CUBLAS_OP_N || operation == CUBLAS_OP_T || operation == CUBLAS_OP_C,
          CUBLAS_STATUS_INVALID_VALUE);
  return operation != CUBLAS_OP_N;
}

void multiply(cublasHandle_t handle, Product p) {
  const Handle own = with(handle, [](const Handle& found) { return found; });
  require(p.rows >= 0 && p.columns >= 0 && p.inner >= 0, CUBLAS_STATUS_INVALID_VALUE);
  check(p.left, p.transposes_left ? p.inner : p.rows, p.transposes_left ? p.rows : p.inner);
  check(p.right, p.transposes_right ? p.columns : p.inner, p.transposes_right ? p.inner : p.columns);
  check(p.result, p.rows, p.columns);
  if (p.rows == 0 || p.columns == 0) return;
  const auto stream = stream_of(own.stream, own.device);
  require(stream->device == own.device, CUBLAS_STATUS_EXECUTION_FAILED);
  enqueue(stream, [p] {
    if (p.in_double)
      multiply_in<double>(p);
    else
      multiply_in<float>(p);
  });
}

template <class T>
constexpr cudaDataType_t type_of = std::is_same_v<T, double> ? CUDA_R_64F : CUDA_R_32F;

template <class T>
cublasStatus_t gemm(const char* function, cublasHandle_t handle, cublasOperation_t left_as, cublasOperation_t right_as,
                    int m, int n, int k, const T* alpha, const T* a, int lda, const T* b, int ldb, const T* beta, T* c,
                    int ldc) {
  return cublas_called(function, [&] {
    require(alpha != nullptr && beta != nullptr, CUBLAS_STATUS_INVALID_VALUE);
    multiply(handle, {transposes(left_as),
                      transposes(right_as),
                      m,
                      n,
                      k,
                      static_cast<double>(*alpha),
                      static_cast<double>(*beta),
                      {a, type_of<T>, lda},
                      {b, type_of<T>, ldb},
                      {c, type_of<T>, ldc},
                      std::is_same_v<T, double>,
                      false});
  });
}

}  // namespace

std::size_t live_cublas_handles() {
  const std::lock_guard lock(all().mutex);
  return all().alive.size();
}

}  // namespace standin

using namespace standin;

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  return cublas_called("cublasCreate", [&] {
    require(handle != nullptr, CUBLAS_STATUS_INVALID_VALUE);
    require(device_count() > 0, CUBLAS_STATUS_NOT_INITIALIZED);
    const std::lock_guard lock(all().mutex);
    *handle = reinterpret_cast<cublasHandle_t>(std::uintptr_t{0xB1000000} + 16 * ++all().number);
    all().alive[*handle].device = current_device();
  });
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  return cublas_called("cublasDestroy", [&] {
    const int device = with(handle, [](const Handle& own) { return own.device; });
    wait_for_device(device);
    const std::lock_guard lock(all().mutex);
    all().alive.erase(handle);
  });
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  return cublas_called("cublasSetStream", [&] { with(handle, [&](Handle& own) { own.stream = stream; }); });
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t) {
  return cublas_called("cublasSetMathMode", [&] { with(handle, [](const Handle&) {}); });
}

const char* cublasGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "an unknown status of cuBLAS";
  }
}
const char* cublasGetStatusString(cublasStatus_t status) { return cublasGetStatusName(status); }

cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t left_as, cublasOperation_t right_as, int m,
                              int n, int k, const float* alpha, const float* a, int lda, const float* b, int ldb,
                              const float* beta, float* c, int ldc) {
  return gemm("cublasSgemm", handle, left_as, right_as, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
cublasStatus_t cublasDgemm_v2(cublasHandle_t handle, cublasOperation_t left_as, cublasOperation_t right_as, int m,
                              int n, int k, const double* alpha, const double* a, int lda, const double* b, int ldb,
                              const double* beta, double* c, int ldc) {
  return gemm("cublasDgemm", handle, left_as, right_as, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t left_as, cublasOperation_t right_as, int m, int n,
                            int k, const void* alpha, const void* a, cudaDataType type_a, int lda, const void* b,
                            cudaDataType type_b, int ldb, const void* beta, void* c, cudaDataType type_c, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t) {
  return cublas_called("cublasGemmEx", [&] {
    require(alpha != nullptr && beta != nullptr, CUBLAS_STATUS_INVALID_VALUE);
    const bool in_double = compute == CUBLAS_COMPUTE_64F || compute == CUBLAS_COMPUTE_64F_PEDANTIC;
    const bool in_float = compute == CUBLAS_COMPUTE_32F || compute == CUBLAS_COMPUTE_32F_PEDANTIC ||
                          compute == CUBLAS_COMPUTE_32F_FAST_TF32 || compute == CUBLAS_COMPUTE_32F_FAST_16BF ||
                          compute == CUBLAS_COMPUTE_32F_FAST_16F;
    require(in_double || in_float, CUBLAS_STATUS_NOT_SUPPORTED);
    // The combinations of types that cuBLAS documents for these.
    require(type_a == type_b && in_double == (type_a == CUDA_R_64F), CUBLAS_STATUS_NOT_SUPPORTED);
    require(type_c == type_a || (in_float && type_c == CUDA_R_32F), CUBLAS_STATUS_NOT_SUPPORTED);
    const auto scalar = [&](const void* value) {
      return in_double ? *static_cast<const double*>(value) : static_cast<double>(*static_cast<const float*>(value));
    };
    multiply(handle, {transposes(left_as),
                      transposes(right_as),
                      m,
                      n,
                      k,
                      scalar(alpha),
                      scalar(beta),
                      {a, type_a, lda},
                      {b, type_b, ldb},
                      {c, type_c, ldc},
                      in_double,
                      compute == CUBLAS_COMPUTE_32F_FAST_TF32});
  });
}
