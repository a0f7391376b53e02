// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cuda_runtime_api.h>

#include <string>

#include "distx/core/error.hpp"

// Converts the CUDA runtime's return codes to distx errors.
namespace distx::inline DISTX_ABI::cuda::detail {

/// Returns whether a code means that the process has no usable GPU, rather than that a call failed.
[[nodiscard]] constexpr bool means_no_gpu(cudaError_t code) noexcept {
  return code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver || code == cudaErrorStubLibrary ||
         code == cudaErrorSystemDriverMismatch || code == cudaErrorCompatNotSupportedOnDevice;
}

/// Returns CUDA's message, name and number of a code.
[[nodiscard]] inline std::string to_string(cudaError_t code) {
  return std::string(cudaGetErrorString(code)) + " (" + cudaGetErrorName(code) + ", " +
         std::to_string(static_cast<int>(code)) + ")";
}

/// @throws MemoryError if CUDA is out of memory, else BackendError with CUDA's code and message
[[noreturn]] inline void fail(cudaError_t code, const char* routine, const ErrorContext& context = {}) {
  static_cast<void>(cudaGetLastError());  // so that a later call does not report it again
  if (means_no_gpu(code))
    throw BackendError("no GPU that CUDA can use: " + to_string(code), context, static_cast<int>(code));
  const std::string message = std::string(routine) + ": " + to_string(code);
  if (code == cudaErrorMemoryAllocation) throw MemoryError(message, context, static_cast<int>(code));
  throw BackendError(message, context, static_cast<int>(code));
}

/// @throws MemoryError, BackendError as `fail`, unless the code is success
inline void check(cudaError_t code, const char* routine, const ErrorContext& context = {}) {
  if (code != cudaSuccess) [[unlikely]]
    fail(code, routine, context);
}

}  // namespace distx::inline DISTX_ABI::cuda::detail
