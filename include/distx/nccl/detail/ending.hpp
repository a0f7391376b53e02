// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <atomic>
#include <chrono>
#include <mutex>

#include "distx/connect/failure_channel.hpp"
#include "distx/nccl/detail/check.hpp"

namespace distx::nccl {

/// Whether a communicator has ended before its time, and why. Any thread may ask, and end it; the first reason stays.
class Ending {
 public:
  enum class Kind { revoked, timeout, rank_failure, error };

  /// @param notices null where the ranks have none
  Ending(std::shared_ptr<FailureChannel> notices, std::uint64_t identity, int rank) noexcept
      : notices_(std::move(notices)), identity_(identity), rank_(rank) {}

  [[nodiscard]] bool ended() const noexcept { return ended_.load(std::memory_order_acquire); }
  [[nodiscard]] std::uint64_t identity() const noexcept { return identity_; }
  [[nodiscard]] const std::shared_ptr<FailureChannel>& failure_channel() const noexcept { return notices_; }

  /// Ends it here, and tells the others. `told`: the caller throws the error itself, so that no other call need to.
  void end(Kind kind, const std::string& why, int code = 0, bool told = false) noexcept {
    std::string sentence;
    try {
      sentence = "rank " + std::to_string(rank_) + " revoked the communicator: " + why;
    } catch (...) {
      // Without memory it is ended without words.
    }
    if (store(kind, sentence, code, told) && notices_ != nullptr) notices_->publish(identity_, sentence);
  }
  /// Ends it here if another rank has ended it. Asks at most once a millisecond.
  void hear() noexcept try {
    if (notices_ == nullptr || ended()) return;
    const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
    if (now < next_.load(std::memory_order_relaxed)) return;
    next_.store(now + std::chrono::steady_clock::duration(std::chrono::milliseconds(1)).count(),
                std::memory_order_relaxed);
    if (const auto reason = notices_->poll(identity_)) store(Kind::revoked, *reason, 0, true);
  } catch (...) {
    // What cannot be heard now is heard later, or the deadline ends the wait.
  }

  /// @pre ended()
  [[noreturn]] void raise(const ErrorContext& context) {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(told_, true)) {
      if (kind_ == Kind::timeout) throw TimeoutError(reason_, context);
      if (kind_ == Kind::rank_failure) throw RankFailure(reason_, -1, nullptr, context);
      if (kind_ == Kind::error) throw Error(reason_, context, code_);
    }
    throw RevokedError(reason_, context, code_);
  }

 private:
  bool store(Kind kind, const std::string& reason, int code, bool told) noexcept {
    const std::lock_guard lock(mutex_);
    if (ended()) return false;
    kind_ = kind;
    code_ = code;
    told_ = told;
    try {
      reason_ = reason;
    } catch (...) {
      // As above.
    }
    ended_.store(true, std::memory_order_release);
    return true;
  }

  std::shared_ptr<FailureChannel> notices_;
  std::uint64_t identity_;
  int rank_;
  std::atomic<bool> ended_{false};
  std::atomic<std::chrono::steady_clock::rep> next_{0};
  std::mutex mutex_;
  Kind kind_ = Kind::revoked;
  std::string reason_;
  int code_ = 0;
  bool told_ = false;  ///< the typed error has been thrown
};

}  // namespace distx::nccl
