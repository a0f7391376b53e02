// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <utility>

#include "distx/cuda/detail/check.hpp"

namespace distx::inline DISTX_ABI::cuda {

/// Returns the number of GPUs that this process sees; 0 if there is none, for any reason: see `why_no_gpu`.
[[nodiscard]] inline int device_count() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  static_cast<void>(cudaGetLastError());
  return 0;  // a failing call leaves the count unset
}

/// Returns the reason why this process has no GPU, or an empty string if it has one.
[[nodiscard]] inline std::string why_no_gpu() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess)
    return count > 0 ? "" : "no GPU: CUDA is installed but sees no device (is CUDA_VISIBLE_DEVICES empty?)";
  static_cast<void>(cudaGetLastError());
  return "no GPU that CUDA can use: " + cuda::detail::to_string(code);
}

/// Returns the number of the GPU that is current on this thread.
/// @throws BackendError if there is none
[[nodiscard]] inline int current_device() {
  int device = 0;
  cuda::detail::check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}
/// Makes a GPU current on this thread.
/// @throws BackendError if there is no such GPU
inline void set_device(int device) { cuda::detail::check(cudaSetDevice(device), "cudaSetDevice"); }

/// Returns a GPU's compute capability, such as 90 for 9.0.
[[nodiscard]] inline int compute_capability(int device) {
  int major = 0, minor = 0;
  cuda::detail::check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                      "cudaDeviceGetAttribute");
  cuda::detail::check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
                      "cudaDeviceGetAttribute");
  return 10 * major + minor;
}

/// Makes a GPU current on this thread until the scope ends, then the previous one again.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) : device_(device), before_(current_device()) {
    if (before_ != device_) set_device(device_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard() {
    if (before_ != device_) static_cast<void>(cudaSetDevice(before_));
  }

 private:
  int device_;
  int before_;
};

}  // namespace distx::inline DISTX_ABI::cuda
