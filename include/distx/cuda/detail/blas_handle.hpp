// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cublas_v2.h>

#include <string>
#include <vector>

#include "distx/cuda/device.hpp"
#include "distx/cuda/stream.hpp"

namespace distx::inline DISTX_ABI::cuda::detail {

/// @throws MemoryError if cuBLAS is out of memory, else BackendError with its code and message, unless it is success
inline void check(cublasStatus_t code, const char* routine) {
  if (code == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  const std::string message = std::string(routine) + ": " + cublasGetStatusString(code) + " (" +
                              cublasGetStatusName(code) + ", " + std::to_string(static_cast<int>(code)) + ")";
  if (code == CUBLAS_STATUS_ALLOC_FAILED) throw MemoryError(message, {.backend = "cublas"}, static_cast<int>(code));
  throw BackendError(message, {.backend = "cublas"}, static_cast<int>(code));
}

struct blas_traits {
  struct handle_type {
    cublasHandle_t handle = nullptr;
    int device = 0;

    friend bool operator==(const handle_type&, const handle_type&) = default;
  };
  static handle_type null() noexcept { return {}; }
  /// cuBLAS wants the handle's GPU to be current.
  static void close(const handle_type& owned) noexcept {
    int current = owned.device;
    static_cast<void>(cudaGetDevice(&current));
    if (current != owned.device) static_cast<void>(cudaSetDevice(owned.device));
    static_cast<void>(cublasDestroy(owned.handle));
    if (current != owned.device) static_cast<void>(cudaSetDevice(current));
  }
};
using unique_blas = unique_handle<blas_traits>;

/// Returns this thread's handle for the current GPU, created at the first call and set to the stream. Sums of bfloat16
/// and float16 are accumulated in float throughout.
[[nodiscard]] inline cublasHandle_t blas_handle(CudaStreamRef stream) {
  static thread_local std::vector<unique_blas> handles;
  const auto device = static_cast<std::size_t>(current_device());
  if (handles.size() <= device) handles.resize(device + 1);
  unique_blas& mine = handles[device];
  if (!mine) {
    cublasHandle_t handle = nullptr;
    check(cublasCreate(&handle), "cublasCreate");
    unique_blas made = unique_blas::from_native_handle({handle, static_cast<int>(device)});
    constexpr auto math = CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
    check(cublasSetMathMode(handle, static_cast<cublasMath_t>(math)), "cublasSetMathMode");
    mine = std::move(made);
  }
  const cublasHandle_t handle = mine.native_handle().handle;
  check(cublasSetStream(handle, stream.native_handle()), "cublasSetStream");
  return handle;
}

}  // namespace distx::inline DISTX_ABI::cuda::detail
