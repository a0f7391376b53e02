// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The main function of the test programs that need a GPU: without one they say why, and end with the status that counts
// as a skip.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <iostream>

#include "distx/cuda/device.hpp"

namespace {

/// Counts the test cases that ran: a program that runs none of its own would pass for ever.
struct Counter : doctest::IReporter {
  explicit Counter(const doctest::ContextOptions&) {}
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats& stats) override { ran = stats.numTestCasesPassingFilters; }
  void test_case_start(const doctest::TestCaseData&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}

  static inline unsigned ran = 0;
};

REGISTER_LISTENER("counter", 1, Counter);

}  // namespace

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  if (const std::string reason = distx::why_no_gpu(); !reason.empty() && !context.shouldExit()) {
    std::cout << "skipped: " << reason << '\n';
    return 77;
  }
  const int failed = context.run();
  if (context.shouldExit()) return failed;  // --help, --list-test-cases…
  if (Counter::ran == 0) {
    std::cerr << argv[0] << ": no test case ran\n";
    return 1;
  }
  return failed;
}
