// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cuda_runtime_api.h>

#include <string>

#include "distx/core/error.hpp"

// The CUDA runtime's return codes become distx errors here.
namespace distx::cuda::detail {

/// Whether a code means that this machine has no GPU that this program could use, rather than that a call went wrong.
[[nodiscard]] constexpr bool means_no_gpu(cudaError_t code) noexcept {
  return code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver || code == cudaErrorStubLibrary ||
         code == cudaErrorSystemDriverMismatch || code == cudaErrorCompatNotSupportedOnDevice;
}

/// CUDA's words for a code, as a sentence's end.
[[nodiscard]] inline std::string words_of(cudaError_t code) {
  return std::string(cudaGetErrorString(code)) + " (" + cudaGetErrorName(code) + ", " +
         std::to_string(static_cast<int>(code)) + ")";
}

/// @throws MemoryError where memory has run out, else Error with CUDA's code and words
[[noreturn]] inline void fail(cudaError_t code, const char* routine, const ErrorContext& context = {}) {
  static_cast<void>(cudaGetLastError());  // an error that is told is not found again by the next call that asks
  if (means_no_gpu(code))
    throw Error("there is no GPU here that CUDA can use: " + words_of(code), context, static_cast<int>(code));
  const std::string words = std::string(routine) + ": " + words_of(code);
  if (code == cudaErrorMemoryAllocation) throw MemoryError(words, context, static_cast<int>(code));
  throw Error(words, context, static_cast<int>(code));
}

inline void check(cudaError_t code, const char* routine, const ErrorContext& context = {}) {
  if (code != cudaSuccess) [[unlikely]]
    fail(code, routine, context);
}

}  // namespace distx::cuda::detail
