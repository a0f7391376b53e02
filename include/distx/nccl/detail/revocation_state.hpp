// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <atomic>
#include <chrono>
#include <mutex>

#include "distx/connect/failure_channel.hpp"
#include "distx/core/detail/revocation_reason.hpp"
#include "distx/nccl/detail/check.hpp"

namespace distx::inline DISTX_ABI::nccl::detail {

/// Whether a communicator is revoked, and why. Any thread may ask and revoke; the first reason is kept.
class RevocationState {
 public:
  enum class Cause { revoked, mismatch, timeout, rank_failure, error };

  /// @param channel where the ranks notify each other; null if they cannot
  RevocationState(std::shared_ptr<FailureChannel> channel, std::uint64_t identity, int rank) noexcept
      : channel_(std::move(channel)), identity_(identity), rank_(rank) {}

  [[nodiscard]] bool revoked() const noexcept { return revoked_.load(std::memory_order_acquire); }
  [[nodiscard]] std::uint64_t identity() const noexcept { return identity_; }
  [[nodiscard]] const std::shared_ptr<FailureChannel>& failure_channel() const noexcept { return channel_; }

  /// Revokes it and notifies the other ranks. `thrown`: the caller throws the typed error itself.
  void revoke(Cause cause, const std::string& why, int code = 0, bool thrown = false) noexcept {
    Reason reason;
    try {
      reason = Reason::parse(why).by(rank_);
    } catch (...) {
      // Out of memory: revoked without a reason.
    }
    if (store(cause, reason, code, thrown) && channel_ != nullptr) publish(reason);
  }
  /// Revokes it if another rank has. Looks at most once a millisecond.
  void poll() noexcept try {
    if (channel_ == nullptr || revoked()) return;
    const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
    if (now < next_.load(std::memory_order_relaxed)) return;
    next_.store(now + std::chrono::steady_clock::duration(std::chrono::milliseconds(1)).count(),
                std::memory_order_relaxed);
    if (const auto published = channel_->poll(identity_)) {
      const auto reason = Reason::parse(*published);
      store(reason.kind == Kind::mismatch ? Cause::mismatch : Cause::revoked, reason, reason.code(), false);
    }
  } catch (...) {
    // A later poll finds it, or the deadline ends the wait.
  }

  /// Throws NonFiniteError for a value that is not finite; otherwise the cause's type the first time, then
  /// RevokedError.
  /// @pre revoked()
  [[noreturn]] void raise(const ErrorContext& context) {
    const std::lock_guard lock(mutex_);
    if (reason_.kind == Kind::not_finite) reason_.raise(context);
    if (!std::exchange(thrown_, true)) {
      if (cause_ == Cause::mismatch) throw MismatchError(reason_.text, context);
      if (cause_ == Cause::timeout) throw TimeoutError(reason_.text, context);
      if (cause_ == Cause::rank_failure) throw RankFailure(reason_.text, -1, nullptr, context);
      if (cause_ == Cause::error) throw BackendError(reason_.text, context, code_);
    }
    throw RevokedError(reason_.text, context, code_, reason_.rank_loss());
  }

 private:
  using Reason = distx::detail::RevocationReason;
  using Kind = Reason::Kind;
  void publish(const Reason& reason) noexcept try { channel_->publish(identity_, reason.published()); } catch (...) {
    channel_->publish(identity_, {});  // as above
  }
  bool store(Cause cause, const Reason& reason, int code, bool thrown) noexcept {
    const std::lock_guard lock(mutex_);
    if (revoked()) return false;
    cause_ = cause;
    code_ = code;
    thrown_ = thrown;
    try {
      reason_ = reason;
    } catch (...) {
      // As above.
    }
    revoked_.store(true, std::memory_order_release);
    return true;
  }

  std::shared_ptr<FailureChannel> channel_;
  std::uint64_t identity_;
  int rank_;
  std::atomic<bool> revoked_{false};
  std::atomic<std::chrono::steady_clock::rep> next_{0};
  std::mutex mutex_;
  Cause cause_ = Cause::revoked;
  Reason reason_;
  int code_ = 0;
  bool thrown_ = false;
};

}  // namespace distx::inline DISTX_ABI::nccl::detail
