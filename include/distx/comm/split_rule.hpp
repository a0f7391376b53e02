// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <functional>
#include <source_location>
#include <type_traits>
#include <utility>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The arguments of `split` on one rank.
struct SplitRequest {
  int color = 0, key = 0, rank = 0;
};

/// The arguments of `split`: on this rank alone, or on every rank, for communicators that cannot ask the others.
class SplitRule {
 public:
  SplitRule(int color, int key) : of_([=](int rank) { return SplitRequest{color, key, rank}; }) {}
  /// @param request_of  a function that returns the SplitRequest of any rank
  template <class RequestOf>
    requires std::is_invocable_r_v<SplitRequest, const RequestOf&, int>
  explicit SplitRule(RequestOf request_of) : of_(std::move(request_of)), of_all_(true) {}

  /// @pre it is this rank, or the rule knows every rank
  [[nodiscard]] SplitRequest of(int rank) const { return of_(rank); }
  [[nodiscard]] bool of_all() const noexcept { return of_all_; }

 private:
  std::function<SplitRequest(int)> of_;
  bool of_all_ = false;
};

/// Splits any communicator; one that does not take a rule gets this rank's color and key.
template <class C>
[[nodiscard]] C split_by(C& comm, const SplitRule& rule, const std::source_location& location) {
  const SplitRequest own = rule.of(comm.rank());
  if constexpr (requires { comm.split(rule, location); })
    return comm.split(rule, location);
  else if constexpr (requires { comm.split(own.color, own.key, location); })
    return comm.split(own.color, own.key, location);
  else
    return comm.split(own.color, own.key);
}

}  // namespace distx::inline DISTX_ABI::detail
