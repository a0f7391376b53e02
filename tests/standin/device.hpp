// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstddef>

namespace standin {

inline constexpr std::size_t most_devices = 16;

[[nodiscard]] int device_count();
/// The GPU of this thread; ends the call where there is none.
[[nodiscard]] int current_device();
/// Ends the call where there is no such GPU.
void check_device(int device);
/// As 90 for 9.0.
[[nodiscard]] int capability_of(int device);
/// Whether two GPUs have the same UUID.
[[nodiscard]] bool same_device(int device, int other);

/// This thread's GPU is another until the scope ends.
class OnDevice {
 public:
  explicit OnDevice(int device);
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice();

 private:
  int before_;
};

}  // namespace standin
