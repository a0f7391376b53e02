// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <limits>
#include <type_traits>

#include "distx/cuda/buffer.hpp"
#include "distx/cuda/detail/blas_handle.hpp"
#include "distx/cuda/detail/operations.hpp"
#include "distx/memory/local_matmul.hpp"

namespace distx::inline DISTX_ABI {

namespace cuda::detail {

inline thread_local int tf32_allowed = 0;

/// The 16-bit types whose products cuBLAS sums in float.
template <class T>
concept ReducedPrecision = std::same_as<T, bfloat16> || std::same_as<T, float16>;

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
    throw InvalidArgument("a matrix has " + std::to_string(size) + " rows or columns: cuBLAS takes at most 2147483647",
                          {.operation = "local_matmul", .backend = "cublas"});
  return static_cast<int>(size);
}

}  // namespace cuda::detail

namespace cuda {

/// Allows TF32 for products of floats by `local_matmul` on this thread while it exists: operands are rounded to 10 bits
/// of fraction and computed on tensor cores, several times as fast. Scopes nest.
class [[nodiscard]] AllowTF32 {
 public:
  AllowTF32() noexcept { ++cuda::detail::tf32_allowed; }
  AllowTF32(const AllowTF32&) = delete;
  AllowTF32& operator=(const AllowTF32&) = delete;
  ~AllowTF32() { --cuda::detail::tf32_allowed; }
};

}  // namespace cuda

namespace cuda::detail {

/// @pre `out` is row-major, and nothing is empty
template <class In, class Out>
void multiply(CudaStreamRef stream, const MatrixRef<Out, Cuda>& out, const MatrixRef<const In, Cuda>& left,
              const MatrixRef<const In, Cuda>& right, accumulator_t<Out> scale, accumulator_t<Out> keep) {
  // cuBLAS takes column-major matrices: a row-major matrix is its transpose there, so this computes the transposed
  // product, with the operands exchanged.
  const auto form = [](const auto& m) { return m.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
  const auto stride = [](const auto& m) { return blas_size(m.transposed ? m.rows : m.columns); };
  constexpr cudaDataType_t in = data_type<In>();
  check(cublasGemmEx(blas_handle(stream), form(right), form(left), blas_size(out.columns), blas_size(out.rows),
                     blas_size(left.columns), &scale, right.values.data(), in, stride(right), left.values.data(), in,
                     stride(left), &keep, out.values.data(), data_type<Out>(), stride(out), compute_type<In>(),
                     CUBLAS_GEMM_DEFAULT),
        "cublasGemmEx");
}

}  // namespace cuda::detail

/// Enqueues out = keep * out + scale * left * right, by cuBLAS. Products of bfloat16 and float16 accumulate in float.
///
/// `out` overlaps neither operand; if keep is 0, its old values are not used. Each thread keeps a cuBLAS handle for
/// each GPU. If several streams of one thread multiply concurrently, cuBLAS does not guarantee the same bits in every
/// run.
/// @throws InvalidArgument if the shapes do not match, or a dimension exceeds cuBLAS's limit
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
  cuda::detail::multiply(stream, out, left, right, scale, keep);
}
/// Enqueues out = left * right, where `left` is first rounded to the type of `right`: a product of that type by tensor
/// cores, whose sums and results are float. The rounded copy of `left` is allocated in stream order.
/// @throws InvalidArgument if the shapes do not match, or a dimension exceeds cuBLAS's limit
template <cuda::detail::ReducedPrecision T>
void local_matmul(CudaStreamRef stream, MatrixRef<float, Cuda> out, MatrixRef<const float, Cuda> left,
                  MatrixRef<const T, Cuda> right) {
  detail::check_product(out, left, right);
  if (out.values.empty()) return;
  if (left.columns == 0) return fill(stream, out.values, 0.0F);
  const Buffer<T, Cuda> rounded(left.values.size(), uninitialized, stream);
  cast(stream, rounded.span(), left.values);
  const MatrixRef<const T, Cuda> factor{rounded.span(), left.rows, left.columns, left.transposed};
  if (out.transposed)
    cuda::detail::multiply(stream, out.transpose(), right.transpose(), factor.transpose(), 1.0F, 0.0F);
  else
    cuda::detail::multiply(stream, out, factor, right, 1.0F, 0.0F);
}

}  // namespace distx::inline DISTX_ABI
