// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <atomic>

namespace test {

/// Counts what is wrong: ranks are threads, and tell nobody but this.
class Wrong {
 public:
  void unless(bool right) { count_ += right ? 0 : 1; }
  [[nodiscard]] int count() const { return count_; }

 private:
  std::atomic<int> count_{0};
};

}  // namespace test
