// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace distx::nccl::detail {

/// A communicator that the watchdog looks after. Both functions return whether anything is in flight.
class Watched {
 public:
  /// Looks at deadlines, other ranks' failures and NCCL's state. Calls no CUDA function, since these may block while
  /// another thread is inside one.
  virtual bool check() noexcept = 0;
  /// Asks the GPU what it has completed.
  virtual bool observe() noexcept = 0;

 protected:
  ~Watched() = default;
};

/// A thread that looks at communicators every 2 ms while anything is in flight, and sleeps otherwise.
class WatchThread {
 public:
  explicit WatchThread(bool (Watched::*look)() noexcept) : look_(look), thread_([this] { run(); }) {}
  WatchThread(const WatchThread&) = delete;
  WatchThread& operator=(const WatchThread&) = delete;
  ~WatchThread() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  void join(Watched& watched) {
    const std::lock_guard lock(mutex_);
    watched_.push_back(&watched);
  }
  /// Once this returns, the thread does not look at `watched` any more.
  void leave(Watched& watched) noexcept {
    const std::lock_guard lock(mutex_);
    std::erase(watched_, &watched);
  }
  /// Call this after something is put in flight.
  void wake() noexcept {
    busy_.store(true);
    if (!asleep_.load()) return;
    { const std::lock_guard lock(mutex_); }
    changed_.notify_one();
  }

 private:
  static constexpr auto interval = std::chrono::milliseconds(2);
  /// Looks before it sleeps, so that a loop that starts calls need not wake it each time.
  static constexpr int idle_looks = 50;

  void run() {
    std::unique_lock lock(mutex_);
    int idle = 0;
    while (!stop_) {
      const bool woken = busy_.exchange(false);
      bool any = false;
      for (Watched* const watched : watched_) any = (watched->*look_)() || any;
      idle = woken || any ? 0 : idle + 1;
      if (idle < idle_looks) {
        changed_.wait_for(lock, interval, [this] { return stop_; });
        continue;
      }
      asleep_.store(true);
      changed_.wait(lock, [this] { return stop_ || busy_.load(); });
      asleep_.store(false);
      idle = 0;
    }
  }

  bool (Watched::*look_)() noexcept;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Watched*> watched_;
  std::atomic<bool> busy_{false};
  std::atomic<bool> asleep_{false};
  bool stop_ = false;
  std::thread thread_;  // last: it uses the others
};

/// Ends calls in flight whose deadline has passed, or whose communicator has failed, while no call of the host does.
/// One per process, while it has communicators. Two threads, so that CUDA cannot hold up the deadlines.
class Watchdog {
 public:
  [[nodiscard]] static std::shared_ptr<Watchdog> shared() {
    static std::mutex mutex;
    static std::weak_ptr<Watchdog> known;
    const std::lock_guard lock(mutex);
    auto watchdog = known.lock();
    if (watchdog == nullptr) known = watchdog = std::make_shared<Watchdog>();
    return watchdog;
  }

  void join(Watched& watched) {
    checks_.join(watched);
    observations_.join(watched);
  }
  /// Checks continue until the GPU is no longer asked: a query may last until a deadline passes.
  void leave(Watched& watched) noexcept {
    observations_.leave(watched);
    checks_.leave(watched);
  }
  void wake() noexcept {
    checks_.wake();
    observations_.wake();
  }

 private:
  WatchThread checks_{&Watched::check};
  WatchThread observations_{&Watched::observe};
};

}  // namespace distx::nccl::detail
