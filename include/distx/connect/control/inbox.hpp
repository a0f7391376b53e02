// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <condition_variable>
#include <map>
#include <mutex>

#include "distx/connect/control/messages.hpp"

namespace distx::inline DISTX_ABI::detail::control {

/// Waits until `ready()`; returns false at the end of the wait; the largest time point stands for none.
template <class Ready>
bool wait_for(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, time_point end, Ready&& ready) {
  if (end != time_point::max()) return changed.wait_until(lock, end, ready);
  changed.wait(lock, ready);
  return true;
}

/// The way from the root to one rank.
class RankChannel {
 public:
  int rank = -1;  ///< in the present group; -1 for one that is not in it

  virtual ~RankChannel() = default;
  virtual void deliver(const Frame& frame) = 0;
  /// Ends the channel, which the rank is not served by any more.
  virtual void dismiss() {}
};

/// The frames that a rank has received from the root, for the threads that wait for them or poll.
class Inbox final : public RankChannel {
 public:
  void deliver(const Frame& frame) override { (void)take(frame); }
  /// Takes a frame; called by the thread that serves the connection. Returns false if it is malformed.
  bool take(const Frame& frame) {
    const std::lock_guard lock(mutex_);
    FrameReader in(frame.body);
    switch (frame.kind) {
      case FrameKind::regrouped: {
        const RankNumbers next{in.small(1 << 20), in.small(1 << 20), in.small(1 << 20), in.small(1 << 20)};
        if (!in.complete() || next.rank() >= next.size() || next.local_rank() >= next.local_size()) return false;
        next_ = next;
        reply_.reset();  // these concern the group before
        root_end_.reset();
        failure_.reset();
        break;
      }
      case FrameKind::refuse:
        if (!error_) error_ = SentError::from(frame);
        failure_ = error_->message;
        break;
      case FrameKind::result:
      case FrameKind::fail:
        reply_ = frame;
        break;
      case FrameKind::published: {
        const auto identity = in.number();
        reasons_.erase(identity);  // of this rank: its place is taken by this one, or by the failure that was before
        if (!failure_) reasons_.emplace(identity, in.text());
        break;
      }
      case FrameKind::ended: {
        const int who = in.small(1 << 20);
        const auto how = static_cast<RankEnd>(in.small(2));
        std::string message(in.text());
        if (!in.complete()) return false;
        if (how != RankEnd::left && !failure_) failure_ = message;
        if (who == 0) root_end_ = SentError{how == RankEnd::threw ? 'r' : 'f', 0, std::move(message)};
        break;
      }
      default:
        return false;
    }
    changed_.notify_all();
    return true;
  }
  /// Takes the end of the connection to the root.
  void lose(const std::string& message) {
    const std::lock_guard lock(mutex_);
    if (!error_) {
      error_ = root_end_ ? *root_end_ : SentError{'f', 0, message};
      if (!root_end_ && !failure_) failure_ = message;
    }
    changed_.notify_all();
  }

  /// Waits for the reply to a call; null at the end of the wait.
  [[nodiscard]] std::optional<Frame> await_reply(time_point end, const ErrorContext& context) {
    return await(reply_, end, context);
  }
  /// Waits for the next group; null at the end of the wait.
  /// @throws the error that the root has sent
  [[nodiscard]] std::optional<RankNumbers> await_next(time_point end, const ErrorContext& context) {
    auto next = await(next_, end, context);
    const std::lock_guard lock(mutex_);
    if (error_) error_->raise(context);  // the root may have notified this rank before that it cannot continue
    return next;
  }

  /// Notes a failure that this rank publishes, until the root says which of all ranks' was the first.
  void note_own(std::uint64_t identity, const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (!failure_) reasons_.emplace(identity, reason);
  }
  [[nodiscard]] std::optional<std::string> poll(std::uint64_t identity) {
    const std::lock_guard lock(mutex_);
    const auto known = reasons_.find(identity);
    return known == reasons_.end() ? failure_ : known->second;
  }
  /// Returns whether a rank has failed or the root cannot be reached.
  [[nodiscard]] bool has_failure() {
    const std::lock_guard lock(mutex_);
    return failure_ || error_;
  }

 private:
  /// Waits for a value, and takes it; null at the end of the wait.
  template <class T>
  std::optional<T> await(std::optional<T>& value, time_point end, const ErrorContext& context) {
    std::unique_lock lock(mutex_);
    if (!wait_for(changed_, lock, end, [&] { return value || error_; })) return std::nullopt;
    if (!value) error_->raise(context);
    return std::exchange(value, std::nullopt);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<RankNumbers> next_;
  std::optional<Frame> reply_;
  std::optional<SentError> error_;     ///< no call can succeed any more
  std::optional<SentError> root_end_;  ///< rank 0 has left
  std::optional<std::string> failure_;
  std::map<std::uint64_t, std::string> reasons_;  ///< of published failures
};

}  // namespace distx::inline DISTX_ABI::detail::control
