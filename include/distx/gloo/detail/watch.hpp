// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <utility>

#include "distx/core/detail/start_thread.hpp"

namespace distx::detail {

/// A thread that all Gloo communicators of a process share, which calls what is registered every 20 ms.
///
/// Gloo does not wake the waits for transfers that were in progress when their connection broke, so waits that last
/// need another way to notice that a peer has failed.
class GlooWatch {
 public:
  /// Returns the watch of this process. @throws BackendError if the system cannot start its thread
  [[nodiscard]] static std::shared_ptr<GlooWatch> shared(const ErrorContext& context) {
    static std::mutex mutex;
    static std::weak_ptr<GlooWatch> known;
    const std::lock_guard lock(mutex);
    auto watch = known.lock();
    if (watch == nullptr) known = watch = std::make_shared<GlooWatch>(context);
    return watch;
  }
  explicit GlooWatch(const ErrorContext& context)
      : thread_(start_thread([this](const std::stop_token& stop) { run(stop); }, context)) {}
  GlooWatch(const GlooWatch&) = delete;
  GlooWatch& operator=(const GlooWatch&) = delete;

  void add(const void* owner, std::function<void()> look) {
    const std::lock_guard lock(mutex_);
    looks_.emplace(owner, std::move(look));
  }
  /// Blocks until the owner's function does not run.
  void remove(const void* owner) noexcept {
    const std::lock_guard lock(mutex_);
    looks_.erase(owner);
  }

 private:
  void run(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      for (const auto& [owner, look] : looks_) look();
      stopped_.wait_for(lock, stop, std::chrono::milliseconds(20), [] { return false; });
    }
  }

  std::mutex mutex_;
  std::condition_variable_any stopped_;
  std::map<const void*, std::function<void()>> looks_;
  std::jthread thread_;
};

}  // namespace distx::detail
