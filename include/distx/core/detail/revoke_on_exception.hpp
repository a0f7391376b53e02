// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <utility>

#include "distx/core/detail/revocation_reason.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Returns what `f` returns. If it throws, calls `revoke(reason)` with its RevocationReason first, so that the other
/// ranks are notified before this rank's caller frees memory that they may still read.
template <class F, class Revoke>
decltype(auto) revoke_on_exception(F&& f, Revoke&& revoke) {
  try {
    return std::forward<F>(f)();
  } catch (...) {
    revoke(RevocationReason::of_current());
    throw;
  }
}

}  // namespace distx::inline DISTX_ABI::detail
