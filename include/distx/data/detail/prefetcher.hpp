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
#include "distx/core/detail/start_thread.hpp"
#include "distx/core/error.hpp"

namespace distx::detail {

/// Computes `make(0)`, `make(1)`, …, `make(count - 1)` on worker threads, ahead of the consumer, which takes them in
/// order.
///
/// `make` is called concurrently. At most `ahead` results that were not taken exist or are being computed. Destruction
/// waits for the calls of `make` that are running, and makes no more.
template <class T>
class Prefetcher {
 public:
  using Make = std::function<T(std::size_t)>;

  /// @pre workers >= 1 and ahead >= 1
  /// @throws BackendError if a thread cannot be started
  Prefetcher(std::size_t count, Make make, std::size_t workers, std::size_t ahead, Timeout deadline)
      : count_(count), make_(std::move(make)), deadline_(deadline), slots_(ahead) {
    workers_.reserve(workers);
    try {
      for (std::size_t i = 0; i < workers; ++i)
        workers_.push_back(start_thread([this] { work(); }, {.operation = "DataLoader"}));
    } catch (...) {
      stop();
      throw;
    }
  }
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;
  ~Prefetcher() { stop(); }

  /// Returns the next result; nullopt after the last, or after one has failed. Blocks until it is computed.
  /// @throws what `make` threw for this result; TimeoutError
  [[nodiscard]] std::optional<T> next() {
    std::unique_lock lock(mutex_);
    if (taken_ == count_) return std::nullopt;
    LoadedBatch& slot = slots_[taken_ % slots_.size()];
    const auto done = [&] { return slot.done; };
    if (deadline_.unlimited()) {
      finished_.wait(lock, done);
    } else if (!finished_.wait_for(lock, deadline_.limit(), done)) {
      throw TimeoutError(
          "timed out after " + deadline_.to_string() + ": batch " + std::to_string(taken_) + " is not made yet",
          {.operation = "DataLoader"});
    }
    std::optional<T> value = std::move(slot.value);
    const std::exception_ptr error = std::exchange(slot.error, nullptr);
    slot = LoadedBatch{};
    ++taken_;
    if (error != nullptr) taken_ = begun_ = count_;  // nothing follows a failure
    lock.unlock();
    room_.notify_one();
    if (error != nullptr) std::rethrow_exception(error);
    return value;
  }

 private:
  struct LoadedBatch {
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
      LoadedBatch result;
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
  std::condition_variable room_;      // notifies workers: a result was taken
  std::condition_variable finished_;  // notifies the consumer: a result is done
  std::vector<LoadedBatch> slots_;
  std::size_t begun_ = 0;
  std::size_t taken_ = 0;
  bool stopping_ = false;
  std::vector<std::jthread> workers_;
};

}  // namespace distx::detail
