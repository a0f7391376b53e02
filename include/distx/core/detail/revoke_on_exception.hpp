// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <exception>
#include <utility>

namespace distx::detail {

/// Gives what `f` gives; where it throws, `tell(words)` comes first, so that the other ranks know before this one's
/// caller does, who then frees what they may still look at.
template <class F, class Tell>
decltype(auto) revoke_on_exception(F&& f, Tell&& tell) {
  try {
    return std::forward<F>(f)();
  } catch (const std::exception& error) {
    tell(error.what());
    throw;
  } catch (...) {
    tell("an exception that is no std::exception");
    throw;
  }
}

}  // namespace distx::detail
