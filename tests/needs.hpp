// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace test {

/// Decorates a test case that cannot run everywhere: where `holds` returns false, the case counts as skipped and `what`
/// is printed.
///
///     TEST_CASE("the last rank fails" * test::Needs("2 ranks", [] { return world().size() >= 2; })) { … }
///
/// `holds` is called once, by run_cases, after the main function has started MPI or CUDA.
class Needs {
 public:
  struct Case {
    std::string title;
    std::string what;
    std::function<bool()> holds;
  };

  Needs(std::string what, std::function<bool()> holds) : what_(std::move(what)), holds_(std::move(holds)) {}

  void fill(doctest::detail::TestCase& test) const { cases().push_back({test.m_name, what_, holds_}); }
  void fill(doctest::detail::TestSuite&) const = delete;

  /// Returns all decorated cases of the program.
  static std::vector<Case>& cases() {
    static std::vector<Case> all;
    return all;
  }

 private:
  std::string what_;
  std::function<bool()> holds_;
};

}  // namespace test
