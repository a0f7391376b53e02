// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The main function of the test programs that need a GPU: without one they say why, and end with the status that counts
// as a skip.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>
#include <iostream>

#include "distx/cuda/device.hpp"
#include "run_cases.hpp"

namespace {

REGISTER_LISTENER("counter", 1, test::Counter);

}  // namespace

int main(int argc, char** argv) {
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);       // else a kernel's first launch may wait for what a test holds back
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);  // else streams that wait may hold up others
  doctest::Context context(argc, argv);
  if (const std::string reason = distx::cuda::why_no_gpu(); !reason.empty() && !context.shouldExit()) {
    std::cout << "skipped: " << reason << '\n';
    return 77;
  }
  return test::run_cases(context, argv[0]);
}
