// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The main function of every test program that needs no launcher.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <iostream>

#include "counter.hpp"

namespace {

REGISTER_LISTENER("counter", 1, test::Counter);

}  // namespace

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  const int failed = context.run();
  if (context.shouldExit()) return failed;  // --help, --list-test-cases…
  if (test::Counter::ran == 0) {
    std::cerr << argv[0] << ": no test case ran\n";
    return 1;
  }
  return failed;
}
