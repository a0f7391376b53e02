// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/core/detail/revoke_on_exception.hpp>
#include <distx/core/error.hpp>

#include <string>

using distx::detail::revoke_on_exception;

TEST_CASE("revoke_on_exception returns the function's result unchanged, without revoking") {
  int told = 0, value = 3;
  const auto tell = [&](const char*) { ++told; };
  int& same = revoke_on_exception([&]() -> int& { return value; }, tell);
  CHECK(&same == &value);
  revoke_on_exception([] {}, tell);
  CHECK(told == 0);
}

TEST_CASE("revoke_on_exception revokes before the exception propagates") {
  std::string words;
  const auto tell = [&](const char* said) { words = said; };
  CHECK_THROWS_AS(revoke_on_exception([] { throw distx::MismatchError("three are not four"); }, tell),
                  distx::MismatchError);
  CHECK(words == "distx: three are not four");
  CHECK_THROWS_AS(revoke_on_exception([] { throw 7; }, tell), int);
  CHECK(words == "unknown exception (not derived from std::exception)");
}
