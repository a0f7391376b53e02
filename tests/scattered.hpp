// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdint>

namespace test {

/// Returns one of many numbers in [-1, 1): floats that use all bits, so that sums of them round. It is cheap, because
/// tests compute millions of them without optimization.
inline float scattered(std::uint64_t number) {
  const auto bits = static_cast<std::int64_t>(number * 0x9E3779B97F4A7C15u) >> 40;  // 2^64 over the golden ratio
  return 0x1p-23f * static_cast<float>(bits);
}

}  // namespace test
