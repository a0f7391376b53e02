// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "distx/comm/calls/wire_bytes.hpp"

namespace distx::inline DISTX_ABI {

/// The speed of an emulated link: the latency of each call, and the bytes per second in each direction.
struct WireSpeed {
  std::chrono::nanoseconds latency{0};
  double bandwidth = std::numeric_limits<double>::infinity();

  /// Returns how long a call that moves these bytes occupies the link.
  [[nodiscard]] std::chrono::nanoseconds duration(const calls::WireBytes& bytes) const {
    const double seconds = static_cast<double>(std::max(bytes.sent, bytes.received)) / bandwidth;
    // Limited to a year, because more would overflow the clock.
    return latency + std::chrono::nanoseconds(std::llround(std::min(seconds, 3.2e7) * 1e9));
  }
};

}  // namespace distx::inline DISTX_ABI
