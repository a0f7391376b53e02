// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "distx/core/deadline.hpp"
#include "distx/core/error.hpp"

namespace distx::detail {

/// Computes `make(0)`, `make(1)`, … `make(count - 1)` on threads of its own, ahead of who takes them in that order.
///
/// `make` is called by several threads at once. Never are more than `ahead` results computed or kept that were not
/// taken. Destruction waits for the calls of `make` that are running, not for the rest.
template <class T>
class Prefetcher {
 public:
  using Make = std::function<T(std::size_t)>;

  /// @pre workers >= 1 and ahead >= 1
  Prefetcher(std::size_t count, Make make, std::size_t workers, std::size_t ahead, Timeout deadline)
      : count_(count), make_(std::move(make)), deadline_(deadline), slots_(ahead) {
    workers_.reserve(workers);
    try {
      for (std::size_t i = 0; i < workers; ++i) workers_.emplace_back([this] { work(); });
    } catch (...) {
      stop();
      throw;
    }
  }
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;
  ~Prefetcher() { stop(); }

  /// The next result; nothing after the last, or after one has failed.
  /// @throws what `make` threw, in its place of the order; TimeoutError
  [[nodiscard]] std::optional<T> next() {
    std::unique_lock lock(mutex_);
    if (taken_ == count_) return std::nullopt;
    Slot& slot = slots_[taken_ % slots_.size()];
    const auto there = [&] { return slot.done; };
    if (deadline_.unlimited()) {
      finished_.wait(lock, there);
    } else if (!finished_.wait_for(lock, deadline_.limit(), there)) {
      throw TimeoutError("batch " + std::to_string(taken_) + " was not made in " + deadline_.to_string(),
                         {.operation = "DataLoader"});
    }
    std::optional<T> value = std::move(slot.value);
    const std::exception_ptr error = std::exchange(slot.error, nullptr);
    slot = Slot{};
    ++taken_;
    if (error != nullptr) taken_ = begun_ = count_;  // nothing follows a failure
    lock.unlock();
    room_.notify_one();
    if (error != nullptr) std::rethrow_exception(error);
    return value;
  }

 private:
  struct Slot {
    std::optional<T> value;
    std::exception_ptr error;
    bool done = false;
  };

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      room_.wait(lock, [&] { return stopping_ || begun_ == count_ || begun_ < taken_ + slots_.size(); });
      if (stopping_ || begun_ == count_) return;
      const std::size_t mine = begun_++;
      lock.unlock();
      Slot result;
      try {
        result.value.emplace(make_(mine));
      } catch (...) {
        result.error = std::current_exception();
      }
      result.done = true;
      lock.lock();
      slots_[mine % slots_.size()] = std::move(result);
      finished_.notify_one();
    }
  }

  void stop() noexcept {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    room_.notify_all();
    workers_.clear();  // joins
  }

  const std::size_t count_;
  const Make make_;
  const Timeout deadline_;
  std::mutex mutex_;
  std::condition_variable room_;      // for workers: a result was taken
  std::condition_variable finished_;  // for the taker: a result is there
  std::vector<Slot> slots_;
  std::size_t begun_ = 0;
  std::size_t taken_ = 0;
  bool stopping_ = false;
  std::vector<std::jthread> workers_;
};

}  // namespace distx::detail
