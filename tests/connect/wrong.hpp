// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <atomic>

namespace test {

/// Counts failed expectations of ranks that are threads, where doctest's checks cannot be used.
class Wrong {
 public:
  void unless(bool right) { count_ += right ? 0 : 1; }
  [[nodiscard]] int count() const { return count_; }

 private:
  std::atomic<int> count_{0};
};

}  // namespace test
