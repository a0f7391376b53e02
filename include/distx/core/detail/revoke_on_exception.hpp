// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <exception>
#include <utility>

#include "distx/core/detail/unknown_exception.hpp"

namespace distx::detail {

/// Returns what `f` returns. If it throws, calls `revoke(reason)` first, so that the other ranks are notified before
/// this rank's caller frees memory that they may still read.
template <class F, class Revoke>
decltype(auto) revoke_on_exception(F&& f, Revoke&& revoke) {
  try {
    return std::forward<F>(f)();
  } catch (const std::exception& error) {
    revoke(error.what());
    throw;
  } catch (...) {
    revoke(unknown_exception);
    throw;
  }
}

}  // namespace distx::detail
