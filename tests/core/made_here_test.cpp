// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/core/detail/made_here.hpp>

#include "forked_process.hpp"

namespace {

struct Counted {
  explicit Counted(int& count) : destroyed(count) {}
  ~Counted() { ++destroyed; }
  int& destroyed;
};

}  // namespace

TEST_CASE("an object is here in the process that made it, and in none that is forked from it") {
  const distx::detail::MadeHere made;
  CHECK(made.is_here());
  const int elsewhere = test::in_forked_process([&] {
    const distx::detail::MadeHere own;
    const int in_grandchild = test::in_forked_process([&] { return made.is_here() || own.is_here() ? 1 : 0; });
    return (made.is_here() ? 1 : 0) + (own.is_here() ? 0 : 2) + (in_grandchild != 0 ? 4 : 0);
  });
  CHECK(elsewhere == 0);
  CHECK(made.is_here());
}

TEST_CASE("a check in a forked process names both processes and what to do") {
  const distx::detail::MadeHere made;
  CHECK_NOTHROW(made.check("this communicator", {}));
  const std::string parent = std::to_string(::getpid());
  const int wrong = test::in_forked_process([&] {
    try {
      made.check("this communicator", {.operation = "barrier"});
      return 1;
    } catch (const distx::InvalidState& error) {
      const std::string expected =
          "distx: barrier: this communicator was made by process " + parent + ", from which this process, " +
          std::to_string(::getpid()) +
          ", was forked; make another one after the fork, or end this process by exec or _exit";
      return error.what() == expected ? 0 : 2;
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("a forked process does not destroy what make_here has made") {
  int destroyed = 0;
  auto object = distx::detail::make_here<Counted>(destroyed);
  const int there = test::in_forked_process([&] {
    object = nullptr;
    { const auto own = distx::detail::make_here<Counted>(destroyed); }
    return destroyed;
  });
  CHECK(there == 1);  // its own
  object = nullptr;
  CHECK(destroyed == 1);
}
