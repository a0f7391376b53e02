// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <vector>

#include "timing/samples.hpp"

namespace timing {

/// Work of a core that takes a given time if nothing else runs there.
class Work {
 public:
  explicit Work(double seconds) {
    double fastest = 1;
    for (int attempt = 0; attempt < 20; ++attempt) {
      const auto begin = clock::now();
      run(10000);
      fastest = std::min(fastest, since(begin));
    }
    repetitions_ = static_cast<int>(10000 * seconds / fastest);
  }
  void operator()() { run(repetitions_); }

 private:
  // Not inlined: the loop that is measured is the one that works.
  [[gnu::noinline]] void run(int repetitions) {
    for (int i = 0; i < repetitions; ++i)
      for (float& value : values_) value = value * 0.999F + 0.001F;
  }

  std::vector<float> values_ = std::vector<float>(256, 2.0F);
  int repetitions_ = 0;
};

}  // namespace timing
