// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The main function of every test program that needs no launcher.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "run_cases.hpp"

namespace {

REGISTER_LISTENER("counter", 1, test::Counter);

}  // namespace

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  return test::run_cases(context, argv[0]);
}
