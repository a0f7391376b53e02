// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/core/error.hpp"

#include <doctest/doctest.h>

namespace {

template <class E>
concept Family = std::derived_from<E, distx::Error> && std::derived_from<E, std::runtime_error>;
static_assert(Family<distx::MismatchError> && Family<distx::TimeoutError> && Family<distx::RevokedError>);
static_assert(Family<distx::ConnectError> && Family<distx::MemoryError> && Family<distx::InvalidArgument>);
static_assert(Family<distx::DataError> && Family<distx::RankFailure>);
static_assert(std::is_nothrow_copy_constructible_v<std::runtime_error>);

TEST_CASE("an error states the operation, rank, backend, message and the caller's line") {
  const auto here = std::source_location::current();
  const distx::MismatchError error(
      "send has 10 elements, receive has 8",
      {.operation = "all_reduce", .backend = "mpi", .rank = 2, .size = 4, .location = here}, 15);
  CHECK(error.what() == "distx: all_reduce on rank 2 of 4 (mpi): send has 10 elements, receive has 8 [error_test.cpp:" +
                            std::to_string(here.line()) + "]");
  CHECK(error.operation() == "all_reduce");
  CHECK(error.backend() == "mpi");
  CHECK(error.rank() == 2);
  CHECK(error.size() == 4);
  CHECK(error.code() == 15);
  CHECK(error.location().line() == here.line());
}

TEST_CASE("an error omits what is unknown") {
  CHECK(std::string(distx::Error("words").what()) == "distx: words");
  CHECK(std::string(distx::Error("words", {.operation = "connect"}).what()) == "distx: connect: words");
  CHECK(std::string(distx::Error("words", {.operation = "connect", .backend = "tcp"}).what()) ==
        "distx: connect (tcp): words");
  CHECK(std::string(distx::Error("words", {.operation = "copy", .rank = 0, .size = 1}).what()) ==
        "distx: copy on rank 0 of 1: words");
  const distx::Error error("words");
  CHECK(error.rank() == -1);
  CHECK(error.size() == 0);
  CHECK(error.code() == 0);
}

TEST_CASE("an error that quotes another one has one prefix, and each location once") {
  const auto here = std::source_location::current();
  const auto there = std::source_location::current();
  const auto place = [](const std::source_location& location) {
    return " [error_test.cpp:" + std::to_string(location.line()) + "]";
  };
  const distx::InvalidArgument cause("invalid root 9", {.operation = "broadcast", .location = here});
  const std::string reason = "rank 1 revoked the communicator: " + std::string(cause.what());
  const std::string quoted = "rank 1 revoked the communicator: broadcast: invalid root 9" + place(here);
  CHECK(std::string(distx::RevokedError(reason).what()) == "distx: " + quoted);
  CHECK(distx::RevokedError(reason).message() == quoted);
  CHECK(std::string(distx::RevokedError(reason, {.location = here}).what()) == "distx: " + quoted);
  CHECK(std::string(distx::RevokedError(reason, {.location = there}).what()) == "distx: " + quoted + place(there));
}

TEST_CASE("a RankFailure keeps the failed rank and its exception") {
  const auto cause = std::make_exception_ptr(std::out_of_range("seven"));
  const distx::RankFailure failure("rank 3 has gone", 3, cause, {.operation = "barrier"});
  CHECK(failure.failed_rank() == 3);
  CHECK(std::string(failure.what()) == "distx: barrier: rank 3 has gone");
  CHECK_THROWS_WITH_AS(std::rethrow_exception(failure.cause()), "seven", std::out_of_range);
  CHECK(distx::RankFailure("gone", 1).cause() == nullptr);
}

}  // namespace
