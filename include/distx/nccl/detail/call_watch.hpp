// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <chrono>
#include <memory>
#include <utility>

#include "distx/core/detail/watch_thread.hpp"

namespace distx::inline DISTX_ABI::nccl::detail {

/// Looks at a communicator's calls in flight while no call of the host does, on two threads that the process shares, so
/// that CUDA cannot hold up the deadlines.
class CallWatch {
  using WatchThread = distx::detail::WatchThread;

 public:
  explicit CallWatch(const ErrorContext& context)
      : checks_(WatchThread::shared<Checks>(context)), observations_(WatchThread::shared<Observations>(context)) {}

  /// Both functions return whether anything is in flight.
  /// @param check  calls no CUDA function, since these may block while another thread is inside one
  /// @param observe  asks the GPU what it has completed
  void begin(WatchThread::Look check, WatchThread::Look observe) {
    checks_->add(this, std::move(check));
    observations_->add(this, std::move(observe));
  }
  /// Once this returns, neither function is called any more. Checks continue until the GPU is no longer asked: a query
  /// may last until a deadline passes.
  void end() noexcept {
    observations_->remove(this);
    checks_->remove(this);
  }
  /// Call this after something is put in flight.
  void wake() noexcept {
    checks_->wake();
    observations_->wake();
  }

 private:
  struct Checks {
    static constexpr std::chrono::milliseconds interval{2};
  };
  struct Observations {
    static constexpr std::chrono::milliseconds interval{2};
  };

  std::shared_ptr<WatchThread> checks_;
  std::shared_ptr<WatchThread> observations_;
};

}  // namespace distx::inline DISTX_ABI::nccl::detail
