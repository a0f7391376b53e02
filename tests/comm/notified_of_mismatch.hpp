// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cerrno>
#include <stdexcept>
#include <string>

#include "distx/comm.hpp"
#include "distx/core/detail/revocation_reason.hpp"

namespace test {

/// Rank 0 revokes `comm` as one that has found a mismatch does, in place of a call of the others. Throws
/// std::runtime_error on a rank whose next two calls do not throw MismatchError, then RevokedError.
template <class C>
void check_notified_of_mismatch(C& comm) {
  const auto ends = [&](const std::string& expected) {
    std::string type = "nothing";
    try {
      distx::barrier(comm);
    } catch (const distx::MismatchError&) {
      type = "MismatchError";
    } catch (const distx::RevokedError&) {
      type = "RevokedError";
    }
    if (type != expected)
      throw std::runtime_error("rank " + std::to_string(comm.rank()) + " threw " + type + ", not " + expected);
  };
  if (comm.rank() == 0)
    comm.revoke(distx::detail::RevocationReason::of(distx::MismatchError("the calls differ")).published());
  else
    ends("MismatchError");
  ends("RevokedError");
}

/// Rank 0 revokes `comm` as one whose allocation has failed. Throws std::runtime_error on another rank whose next call
/// does not throw RevokedError with the code ENOMEM and its words alone.
template <class C>
void check_notified_of_failed_allocation(C& comm) {
  if (comm.rank() == 0) {
    comm.revoke(distx::detail::RevocationReason::of(distx::MemoryError("too little")).published());
    return;
  }
  try {
    distx::barrier(comm);
  } catch (const distx::RevokedError& error) {
    if (error.code() == ENOMEM && error.message() == "rank 0 revoked the communicator: out of memory: too little")
      return;
    throw std::runtime_error("code " + std::to_string(error.code()) + ": " + error.what());
  }
  throw std::runtime_error("the barrier was passed");
}

/// Rank 0 revokes `comm` as one whose loss is not finite. Throws std::runtime_error on another rank whose calls do not
/// throw NonFiniteError with its words.
template <class C>
void check_notified_of_not_finite(C& comm) {
  if (comm.rank() == 0)
    return comm.revoke(distx::detail::RevocationReason::of(distx::NonFiniteError("inf")).published());
  for (int call = 0; call < 2; ++call) try {
      distx::barrier(comm);
      throw std::runtime_error("the barrier was passed");
    } catch (const distx::NonFiniteError& error) {
      if (error.message().find("rank 0 revoked the communicator: inf") == std::string::npos) throw;
    }
}

/// Rank 0 revokes `comm` as one whose own argument is invalid. Throws std::runtime_error on another rank whose calls do
/// not throw a RevokedError that is not a rank loss.
template <class C>
void check_notified_of_own_error(C& comm) {
  if (comm.rank() == 0)
    return comm.revoke(distx::detail::RevocationReason::of(distx::InvalidArgument("bad rate")).published());
  for (int call = 0; call < 2; ++call) try {
      distx::barrier(comm);
      throw std::runtime_error("the barrier was passed");
    } catch (const distx::RevokedError& error) {
      if (distx::is_rank_loss(error)) throw std::runtime_error(std::string("a rank loss: ") + error.what());
    }
}

}  // namespace test
