// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "distx/cuda/detail/check.hpp"

namespace distx::nccl {

/// What the watcher looks at.
class Watched {
 public:
  /// On the watcher's thread. Whether anything is in flight, so that it must look again.
  virtual bool look() noexcept = 0;

 protected:
  ~Watched() = default;
};

/// The thread of this process that looks after what is in flight while no call of the host does. One for all
/// communicators, as long as there is one; it sleeps where nothing is in flight.
class Watcher {
 public:
  /// The process's; started where there is none.
  [[nodiscard]] static std::shared_ptr<Watcher> shared() {
    static std::mutex mutex;
    static std::weak_ptr<Watcher> known;
    const std::lock_guard lock(mutex);
    auto watcher = known.lock();
    if (watcher == nullptr) known = watcher = std::make_shared<Watcher>();
    return watcher;
  }

  Watcher() : thread_([this] { run(); }) {}
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;
  ~Watcher() {
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
  /// When this returns it is not looked at, and never will be.
  void leave(Watched& watched) noexcept {
    const std::lock_guard lock(mutex_);
    std::erase(watched_, &watched);
  }
  /// Something is in flight.
  void wake() noexcept {
    busy_.store(true);
    if (!asleep_.load()) return;
    { const std::lock_guard lock(mutex_); }
    changed_.notify_one();
  }

 private:
  static constexpr auto interval = std::chrono::milliseconds(2);
  static constexpr int idle_looks =
      50;  ///< before it sleeps, so that a loop that starts calls need not wake it each time

  void run() {
    // So that to ask for events here ends no capture of another thread's.
    auto mode = cudaStreamCaptureModeRelaxed;
    static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode));
    std::unique_lock lock(mutex_);
    int idle = 0;
    while (!stop_) {
      const bool told = busy_.exchange(false);
      bool any = false;
      for (Watched* const watched : watched_) any = watched->look() || any;
      idle = told || any ? 0 : idle + 1;
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

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Watched*> watched_;
  std::atomic<bool> busy_{false};
  std::atomic<bool> asleep_{false};
  bool stop_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace distx::nccl
