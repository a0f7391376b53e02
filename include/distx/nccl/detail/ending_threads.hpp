// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <thread>

#include "distx/core/detail/wait.hpp"

namespace distx::inline DISTX_ABI::nccl::detail {

/// Threads in which NCCL ends communicators. Nobody joins them one by one; the end of the process waits for them, since
/// they call CUDA, which the process is about to unload.
class EndingThreads {
 public:
  [[nodiscard]] static EndingThreads& all() {
    static EndingThreads threads;
    return threads;
  }
  EndingThreads(const EndingThreads&) = delete;
  EndingThreads& operator=(const EndingThreads&) = delete;
  ~EndingThreads() {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait_for(lock, std::chrono::seconds(10), [this] { return state_->running == 0; });
  }

  /// Runs every function on a separate thread, and waits for all of them for up to two seconds.
  template <class F>
  void run(std::span<F> functions) noexcept {
    std::shared_ptr<std::atomic<std::size_t>> left;
    try {
      left = std::make_shared<std::atomic<std::size_t>>(functions.size());
    } catch (...) {
      for (F& f : functions) f();
      return;
    }
    for (F& f : functions) {
      try {
        start([f, left] {
          f();
          --*left;
        });
      } catch (...) {  // no more threads
        f();
        --*left;
      }
    }
    distx::detail::wait_until(std::chrono::seconds(2), [&] { return *left == 0; }, [] { return false; });
  }

 private:
  struct SharedState {
    std::mutex mutex;
    std::condition_variable changed;
    int running = 0;
  };

  EndingThreads() = default;

  template <class F>
  void start(F f) {
    const auto count = [state = state_](int change) {
      const std::lock_guard lock(state->mutex);
      state->running += change;
      state->changed.notify_all();
    };
    count(1);
    try {
      std::thread([f = std::move(f), count] {
        f();
        count(-1);
      }).detach();
    } catch (...) {
      count(-1);
      throw;
    }
  }

  std::shared_ptr<SharedState> state_ = std::make_shared<SharedState>();  // outlives this where a thread does
};

}  // namespace distx::inline DISTX_ABI::nccl::detail
