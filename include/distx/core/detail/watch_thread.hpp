// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <utility>

#include "distx/core/detail/made_here.hpp"
#include "distx/core/detail/start_thread.hpp"

namespace distx::inline DISTX_ABI::detail {

/// A thread that calls functions at an interval while one of them says that anything is in flight, and sleeps
/// otherwise.
class WatchThread {
 public:
  /// Returns whether anything is in flight. Throws nothing.
  using Look = std::function<bool()>;

  /// @throws BackendError if the system cannot start a thread
  WatchThread(std::chrono::milliseconds interval, const ErrorContext& context)
      : interval_(interval), thread_(start_thread([this](const std::stop_token& stop) { run(stop); }, context)) {}

  /// Returns the thread that the process shares for a purpose, which exists while anyone holds it.
  /// @throws BackendError if the system cannot start it
  template <class Purpose>
  [[nodiscard]] static std::shared_ptr<WatchThread> shared(const ErrorContext& context) {
    static std::mutex mutex;
    static std::weak_ptr<WatchThread> known;
    const std::lock_guard lock(mutex);
    auto thread = known.lock();
    if (thread == nullptr || !thread->made_.is_here())
      known = thread = make_here<WatchThread>(Purpose::interval, context);
    return thread;
  }

  void add(const void* owner, Look look) {
    {
      const std::lock_guard lock(mutex_);
      looks_.insert_or_assign(owner, std::move(look));
    }
    wake();
  }
  /// Once this returns, the owner's function is not called any more.
  void remove(const void* owner) noexcept {
    const std::lock_guard lock(mutex_);
    looks_.erase(owner);
  }
  /// Call this after something is put in flight.
  void wake() noexcept {
    busy_.store(true);
    if (!asleep_.load()) return;
    { const std::lock_guard lock(mutex_); }
    changed_.notify_one();
  }

 private:
  /// Looks before it sleeps, so that a loop that starts calls need not wake it each time.
  static constexpr int idle_looks = 50;

  void run(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    int idle = 0;
    while (!stop.stop_requested()) {
      bool any = busy_.exchange(false);
      for (const auto& [owner, look] : looks_) any = look() || any;
      idle = any ? 0 : idle + 1;
      if (idle < idle_looks) {
        changed_.wait_for(lock, stop, interval_, [] { return false; });
        continue;
      }
      asleep_.store(true);
      changed_.wait(lock, stop, [this] { return busy_.load(); });
      asleep_.store(false);
      idle = 0;
    }
  }

  MadeHere made_;
  std::chrono::milliseconds interval_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::map<const void*, Look> looks_;
  std::atomic<bool> busy_{false};
  std::atomic<bool> asleep_{false};
  std::jthread thread_;  // last: it uses the others
};

}  // namespace distx::inline DISTX_ABI::detail
