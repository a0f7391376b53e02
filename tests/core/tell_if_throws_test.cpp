// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <distx/core/error.hpp>
#include <distx/core/tell_if_throws.hpp>
#include <doctest/doctest.h>

#include <string>

using distx::detail::tell_if_throws;

TEST_CASE("what a function gives is given back, as it is, and nothing is told") {
  int told = 0, value = 3;
  const auto tell = [&](const char*) { ++told; };
  int& same = tell_if_throws([&]() -> int& { return value; }, tell);
  CHECK(&same == &value);
  tell_if_throws([] {}, tell);
  CHECK(told == 0);
}

TEST_CASE("what a function throws is told before it goes on") {
  std::string words;
  const auto tell = [&](const char* said) { words = said; };
  CHECK_THROWS_AS(tell_if_throws([] { throw distx::MismatchError("three are not four"); }, tell), distx::MismatchError);
  CHECK(words == "distx: three are not four");
  CHECK_THROWS_AS(tell_if_throws([] { throw 7; }, tell), int);
  CHECK(words == "an exception that is no std::exception");
}
