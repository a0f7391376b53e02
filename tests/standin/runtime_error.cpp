// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The CUDA runtime's functions on errors.
#include <atomic>
#include <utility>

#include "standin/runtime.hpp"
#include "standin/standin.hpp"

namespace standin {

namespace {

thread_local cudaError_t last = cudaSuccess;
std::atomic<bool> not_ready_is_kept{true};

struct Words {
  const char* name;
  const char* text;
};

#define WORDS(code, text) \
  case code:              \
    return { #code, text }

Words words_of(cudaError_t code) {
  switch (code) {
    WORDS(cudaSuccess, "no error");
    WORDS(cudaErrorInvalidValue, "invalid argument");
    WORDS(cudaErrorMemoryAllocation, "out of memory");
    WORDS(cudaErrorInitializationError, "initialization error");
    WORDS(cudaErrorInvalidConfiguration, "invalid configuration argument");
    WORDS(cudaErrorInvalidPitchValue, "invalid pitch argument");
    WORDS(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy");
    WORDS(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version");
    WORDS(cudaErrorInvalidDeviceFunction, "invalid device function");
    WORDS(cudaErrorNoDevice, "no CUDA-capable device is detected");
    WORDS(cudaErrorInvalidDevice, "invalid device ordinal");
    WORDS(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered");
    WORDS(cudaErrorInvalidResourceHandle, "invalid resource handle");
    WORDS(cudaErrorIllegalState, "the operation cannot be performed in the present state");
    WORDS(cudaErrorNotReady, "device not ready");
    WORDS(cudaErrorIllegalAddress, "an illegal memory access was encountered");
    WORDS(cudaErrorMisalignedAddress, "misaligned address");
    WORDS(cudaErrorLaunchOutOfResources, "too many resources requested for launch");
    WORDS(cudaErrorLaunchFailure, "unspecified launch failure");
    WORDS(cudaErrorLaunchTimeout, "the launch timed out and was terminated");
    WORDS(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled");
    WORDS(cudaErrorHostMemoryAlreadyRegistered, "part or all of the requested memory range is already mapped");
    WORDS(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region");
    WORDS(cudaErrorNotSupported, "operation not supported");
    WORDS(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing");
    WORDS(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture");
    WORDS(cudaErrorStreamCaptureMerge, "operation would result in a merge of separate capture sequences");
    WORDS(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began");
    WORDS(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work");
    WORDS(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream");
    WORDS(cudaErrorStreamCaptureImplicit,
          "operation would make the legacy stream depend on a capturing blocking stream");
    WORDS(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream");
    WORDS(cudaErrorUnknown, "unknown error");
    default:
      return {"unrecognized error code", "unrecognized error code"};
  }
}

std::atomic<cudaError_t> failure{cudaSuccess};

}  // namespace

cudaError_t gpu_failure() noexcept { return failure; }
void fail_gpu(cudaError_t code) noexcept { failure = code; }

void note(cudaError_t code) {
  if (code != cudaSuccess && (code != cudaErrorNotReady || not_ready_is_kept)) last = code;
}
void keeps_not_ready(bool keeps) { not_ready_is_kept = keeps; }

}  // namespace standin

using namespace standin;

const char* cudaGetErrorName(cudaError_t code) { return words_of(code).name; }
const char* cudaGetErrorString(cudaError_t code) { return words_of(code).text; }
cudaError_t cudaPeekAtLastError() { return last; }
cudaError_t cudaGetLastError() { return std::exchange(last, cudaSuccess); }
