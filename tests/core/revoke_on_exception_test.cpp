// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/core/detail/revoke_on_exception.hpp>
#include <distx/core/error.hpp>

#include <string>

using distx::detail::revoke_on_exception;

TEST_CASE("revoke_on_exception returns the function's result unchanged, without revoking") {
  int told = 0, value = 3;
  const auto tell = [&](const auto&) { ++told; };
  int& same = revoke_on_exception([&]() -> int& { return value; }, tell);
  CHECK(&same == &value);
  revoke_on_exception([] {}, tell);
  CHECK(told == 0);
}

TEST_CASE("revoke_on_exception revokes before the exception propagates") {
  using Kind = distx::detail::RevocationReason::Kind;
  std::string words;
  auto kind = Kind::lost;
  const auto tell = [&](const distx::detail::RevocationReason& reason) {
    words = reason.text;
    kind = reason.kind;
  };
  CHECK_THROWS_AS(revoke_on_exception([] { throw distx::MismatchError("three are not four"); }, tell),
                  distx::MismatchError);
  CHECK(words == "distx: three are not four");
  CHECK(kind == Kind::mismatch);
  CHECK_THROWS_AS(revoke_on_exception([] { throw 7; }, tell), int);
  CHECK(words == "unknown exception (not derived from std::exception)");
  CHECK(kind == Kind::lost);
}

TEST_CASE("a reason that one rank publishes makes another rank throw what concerns it, with the right rank loss") {
  const auto received = [](const auto& error) {
    const auto published = distx::detail::RevocationReason::of(error).published();
    return distx::detail::RevocationReason::parse(published).by(2);
  };
  const auto revoked = [&](const auto& error) {
    auto reason = received(error);
    try {
      reason.raise({});
    } catch (const distx::RevokedError& raised) {
      CHECK(raised.message().starts_with("rank 2 revoked the communicator: "));
      return is_rank_loss(raised) ? std::string("loss") : std::string("no loss");
    } catch (const distx::NonFiniteError& raised) {
      CHECK_FALSE(is_rank_loss(raised));
      return std::string("not finite");
    } catch (const distx::MismatchError& raised) {
      CHECK_FALSE(is_rank_loss(raised));
      return std::string("mismatch");
    }
  };
  CHECK(revoked(distx::InvalidArgument("a")) == "no loss");
  CHECK(revoked(distx::InvalidState("a")) == "no loss");
  CHECK(revoked(distx::DataError("a")) == "no loss");
  CHECK(revoked(distx::CheckpointError("a")) == "no loss");
  CHECK(revoked(distx::RevokedError("a", {}, 0, false)) == "no loss");
  CHECK(revoked(distx::TimeoutError("a", {}, 0, false)) == "no loss");
  CHECK(revoked(distx::RevokedError("a")) == "loss");
  CHECK(revoked(distx::TimeoutError("a")) == "loss");
  CHECK(revoked(distx::RankFailure("a", 1)) == "loss");
  CHECK(revoked(distx::MemoryError("a")) == "loss");
  CHECK(revoked(distx::BackendError("a")) == "loss");
  CHECK(revoked(distx::NonFiniteError("a")) == "not finite");
  CHECK(revoked(distx::MismatchError("a")) == "mismatch");
}
