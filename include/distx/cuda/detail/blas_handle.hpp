// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cublas_v2.h>

#include <string>
#include <vector>

#include "distx/cuda/device.hpp"
#include "distx/cuda/stream.hpp"

namespace distx::cuda::detail {

/// @throws MemoryError where memory has run out, else Error with cuBLAS's code and words
inline void check(cublasStatus_t code, const char* routine) {
  if (code == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  const std::string words = std::string(routine) + ": " + cublasGetStatusString(code) + " (" +
                            cublasGetStatusName(code) + ", " + std::to_string(static_cast<int>(code)) + ")";
  if (code == CUBLAS_STATUS_ALLOC_FAILED) throw MemoryError(words, {.backend = "cublas"}, static_cast<int>(code));
  throw Error(words, {.backend = "cublas"}, static_cast<int>(code));
}

struct blas_traits {
  using handle_type = cublasHandle_t;
  static handle_type null() noexcept { return nullptr; }
  static void close(handle_type handle) noexcept { static_cast<void>(cublasDestroy(handle)); }
};
using unique_blas = unique_handle<blas_traits>;

/// This thread's handle for the current GPU, made at its first call and kept, set to the stream. Sums of bfloat16 and
/// float16 are in float throughout.
[[nodiscard]] inline cublasHandle_t blas_handle(CudaStreamRef stream) {
  static thread_local std::vector<unique_blas> handles;
  const auto device = static_cast<std::size_t>(current_device());
  if (handles.size() <= device) handles.resize(device + 1);
  unique_blas& mine = handles[device];
  if (!mine) {
    cublasHandle_t handle = nullptr;
    check(cublasCreate(&handle), "cublasCreate");
    unique_blas made = unique_blas::from_native_handle(handle);
    constexpr auto math = CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
    check(cublasSetMathMode(handle, static_cast<cublasMath_t>(math)), "cublasSetMathMode");
    mine = std::move(made);
  }
  check(cublasSetStream(mine.native_handle(), stream.native_handle()), "cublasSetStream");
  return mine.native_handle();
}

}  // namespace distx::cuda::detail
