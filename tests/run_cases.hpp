// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "needs.hpp"

namespace test {

/// Counts the attempts of a test case to run on some number of ranks, and those that ran.
struct Attempts {
  static inline unsigned made = 0, run = 0;
  /// Counts one, and returns `there_are`.
  static bool count(bool there_are) {
    ++made;
    run += there_are ? 1 : 0;
    return there_are;
  }
};

/// Counts the test cases that ran and, by reason, those that were skipped because something they need is missing.
struct Counter : doctest::IReporter {
  explicit Counter(const doctest::ContextOptions&) {}
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats& stats) override {
    ran = stats.numTestCasesPassingFilters - unrun;
    if (unrun > 0) skipped["another number of ranks"] += static_cast<int>(unrun);
  }
  void test_case_start(const doctest::TestCaseData&) override { Attempts::made = Attempts::run = 0; }
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {
    if (Attempts::made > 0 && Attempts::run == 0) ++unrun;
  }
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData& test) override {
    if (const auto found = missing.find(test.m_name); found != missing.end()) ++skipped[found->second];
  }

  static inline unsigned ran = 0;
  static inline unsigned unrun = 0;                          ///< found none of their numbers of ranks
  static inline std::map<std::string, std::string> missing;  ///< the unmet need of a test case, by its title
  static inline std::map<std::string, int> skipped;
};

/// What run_cases calls after the last test case: releases what test cases share while its libraries are alive.
inline std::vector<std::function<void()>>& at_end() {
  static std::vector<std::function<void()>> all;
  return all;
}

/// Runs the test cases whose needs are met, prints how many others were skipped and why, and returns the program's exit
/// status: 77 (skipped) if all were skipped, 1 if none ran or was skipped.
inline int run_cases(doctest::Context& context, const char* program, bool prints = true) {
  for (const Needs::Case& one : Needs::cases()) {
    if (one.holds()) continue;
    Counter::missing[one.title] = one.what;
    std::string pattern = one.title;
    std::replace(pattern.begin(), pattern.end(), ',', '?');  // doctest separates patterns by commas
    context.addFilter("test-case-exclude", pattern.c_str());
  }
  const int failed = context.run();
  for (const auto& release : at_end()) release();
  if (context.shouldExit()) return failed;  // --help, --list-test-cases…
  for (const auto& [what, count] : Counter::skipped)
    if (prints) std::cout << "skipped: " << count << " test cases need " << what << '\n';
  if (Counter::ran > 0 || failed != 0) return failed;
  if (!Counter::skipped.empty()) return 77;
  std::cerr << program << ": no test case ran\n";
  return 1;
}

}  // namespace test
