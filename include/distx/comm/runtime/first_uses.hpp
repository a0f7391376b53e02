// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <unordered_set>

#include "distx/comm/calls/validate.hpp"
#include "distx/comm/check.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The calls that the ranks of a communicator have compared, for Check::first_use.
class FirstUses {
 public:
  /// Returns whether a call is to be compared, and records it as known. The same on every rank.
  template <MemorySpace Space>
  [[nodiscard]] bool compares(Check check, const Call<Space>& call) {
    return check == Check::every_call || (check == Check::first_use && is_new(fingerprint(call)));
  }
  /// Returns whether a description is not known yet, and records it.
  [[nodiscard]] bool is_new(const Fingerprint& call) { return known_.insert(digest_of(call)).second; }

 private:
  std::unordered_set<std::uint64_t> known_;
};

}  // namespace distx::inline DISTX_ABI::detail
