// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdio>
#include <exception>

#include <distx/cuda.hpp>

namespace timing {

/// Runs a benchmark that needs a GPU, and returns the program's status: what `run()` returns, 1 after an error, which
/// is printed, or 77, a skip, without a GPU.
template <class F>
int on_gpu(F&& run) {
  try {
    const auto reason = distx::cuda::why_no_gpu();
    if (reason.empty()) return run();
    std::printf("skipped: %s\n", reason.c_str());
    return 77;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace timing
