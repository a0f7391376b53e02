// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <system_error>
#include <thread>
#include <utility>

#include "distx/core/error.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Starts a thread that runs `f`.
/// @throws BackendError if the system cannot start one
template <class F>
[[nodiscard]] std::jthread start_thread(F&& f, const ErrorContext& context) {
  try {
    return std::jthread(std::forward<F>(f));
  } catch (const std::system_error& error) {
    throw BackendError("cannot start a thread (" + error.code().message() +
                           "): raise the limits on processes and memory, or use fewer threads",
                       context, error.code().value());
  }
}

}  // namespace distx::inline DISTX_ABI::detail
