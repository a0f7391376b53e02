// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <limits>
#include <type_traits>

#include "distx/cuda/detail/blas_handle.hpp"
#include "distx/cuda/detail/operations.hpp"
#include "distx/memory/local_matmul.hpp"

namespace distx {

namespace cuda::detail {

inline thread_local int tf32_allowed = 0;

template <class T>
[[nodiscard]] constexpr cudaDataType_t data_type() noexcept {
  if constexpr (std::same_as<T, double>)
    return CUDA_R_64F;
  else if constexpr (std::same_as<T, bfloat16>)
    return CUDA_R_16BF;
  else if constexpr (std::same_as<T, float16>)
    return CUDA_R_16F;
  else
    return CUDA_R_32F;
}

template <class T>
[[nodiscard]] cublasComputeType_t compute_type() noexcept {
  if constexpr (std::same_as<T, double>)
    return CUBLAS_COMPUTE_64F;
  else if constexpr (std::same_as<T, float>)
    return tf32_allowed > 0 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  else
    return CUBLAS_COMPUTE_32F;
}

[[nodiscard]] inline int blas_size(std::size_t size) {
  if (size > static_cast<std::size_t>(std::numeric_limits<int>::max()))
    throw MismatchError("cuBLAS takes matrices of at most 2147483647 rows and columns, not " + std::to_string(size),
                        {.operation = "local_matmul", .backend = "cublas"});
  return static_cast<int>(size);
}

}  // namespace cuda::detail

/// While one lives, products of floats on this thread may round their operands to TF32's 10 bits of fraction, which is
/// several times as fast; without it they do not.
class [[nodiscard]] AllowTF32 {
 public:
  AllowTF32() noexcept { ++cuda::detail::tf32_allowed; }
  AllowTF32(const AllowTF32&) = delete;
  AllowTF32& operator=(const AllowTF32&) = delete;
  ~AllowTF32() { --cuda::detail::tf32_allowed; }
};

/// out = keep * out + scale * left * right, by cuBLAS, in stream order; bfloat16 and float16 are added up in float.
///
/// `out` overlaps neither operand; with keep = 0 its old values do not matter. A handle of cuBLAS is kept for each
/// thread and GPU. Where several streams of one thread multiply at the same time, cuBLAS does not promise the same bits
/// in every run.
/// @throws MismatchError where the shapes do not fit
template <FloatingElement T>
void local_matmul(CudaStreamRef stream, MatrixRef<T, Cuda> out, std::type_identity_t<MatrixRef<const T, Cuda>> left,
                  std::type_identity_t<MatrixRef<const T, Cuda>> right,
                  std::type_identity_t<accumulator_t<T>> scale = 1, std::type_identity_t<accumulator_t<T>> keep = 0) {
  detail::check_product(out, left, right);
  if (out.transposed) return local_matmul(stream, out.transpose(), right.transpose(), left.transpose(), scale, keep);
  if (out.values.empty()) return;
  if (left.columns == 0) {
    if (keep == 0) return fill(stream, out.values, T{});
    return distx::scale(stream, out.values, static_cast<double>(keep));
  }
  // cuBLAS takes matrices column after column: there, row after row, lie the transposed ones, so the product of those
  // is computed, in the other order.
  const auto form = [](const auto& m) { return m.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
  const auto stride = [](const auto& m) { return cuda::detail::blas_size(m.transposed ? m.rows : m.columns); };
  constexpr cudaDataType_t type = cuda::detail::data_type<T>();
  cuda::detail::check(
      cublasGemmEx(cuda::detail::blas_handle(stream), form(right), form(left), cuda::detail::blas_size(out.columns),
                   cuda::detail::blas_size(out.rows), cuda::detail::blas_size(left.columns), &scale,
                   right.values.data(), type, stride(right), left.values.data(), type, stride(left), &keep,
                   out.values.data(), type, stride(out), cuda::detail::compute_type<T>(), CUBLAS_GEMM_DEFAULT),
      "cublasGemmEx");
}

}  // namespace distx
