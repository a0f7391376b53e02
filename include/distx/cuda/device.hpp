// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <utility>

#include "distx/cuda/detail/check.hpp"

namespace distx {

/// How many GPUs this process sees; 0 where there is none, whatever the reason: see `why_no_gpu`.
[[nodiscard]] inline int device_count() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  static_cast<void>(cudaGetLastError());
  return 0;  // a failing call leaves the count unset
}

/// Why there is no GPU, in a sentence; empty where there is one.
[[nodiscard]] inline std::string why_no_gpu() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess)
    return count > 0 ? "" : "there is no GPU here: CUDA is here and sees none (is CUDA_VISIBLE_DEVICES empty?)";
  static_cast<void>(cudaGetLastError());
  return "there is no GPU here that CUDA can use: " + cuda::detail::words_of(code);
}

/// The GPU that this thread's CUDA calls go to.
/// @throws Error where there is none
[[nodiscard]] inline int current_device() {
  int device = 0;
  cuda::detail::check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}
/// @throws Error where there is no such GPU
inline void set_device(int device) { cuda::detail::check(cudaSetDevice(device), "cudaSetDevice"); }

/// A GPU's compute capability, as 90 for 9.0.
[[nodiscard]] inline int compute_capability(int device) {
  int major = 0, minor = 0;
  cuda::detail::check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                      "cudaDeviceGetAttribute");
  cuda::detail::check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
                      "cudaDeviceGetAttribute");
  return 10 * major + minor;
}

/// Lets this thread's CUDA calls go to a GPU until the scope ends, and then to the one before.
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

}  // namespace distx
