// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cerrno>
#include <csignal>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Keeps SIGPIPE from this thread, and from threads that it starts, while it exists: Gloo writes to connections that
/// their other side may have closed, and the signal would end the process.
class BrokenPipeGuard {
 public:
  BrokenPipeGuard() noexcept {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  BrokenPipeGuard(const BrokenPipeGuard&) = delete;
  BrokenPipeGuard& operator=(const BrokenPipeGuard&) = delete;
  ~BrokenPipeGuard() {
    if (::sigismember(&before_, SIGPIPE) != 0) return;
    const timespec now{};
    while (::sigtimedwait(&pipe_, nullptr, &now) == -1 && errno == EINTR) {
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t pipe_, before_;
};

}  // namespace distx::inline DISTX_ABI::detail
