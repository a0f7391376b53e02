// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

namespace timing {

using clock = std::chrono::steady_clock;

/// Returns the seconds since then.
inline double since(clock::time_point begin) { return std::chrono::duration<double>(clock::now() - begin).count(); }

/// Returns the median, of two in the middle the greater one; 0 of no values.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace timing
