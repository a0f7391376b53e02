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
    switch (frame.kind) {
      case FrameKind::regrouped:
        if (frame.rank < 0 || frame.rank >= frame.size) return false;
        if (frame.local_rank < 0 || frame.local_rank >= frame.local_size) return false;
        if (error_) break;  // the root has notified this rank that it cannot continue
        next.emplace(frame.rank, frame.size, frame.local_rank, frame.local_size);
        reply.reset();  // these concern the group before
        root_end_.reset();
        failure_.reset();
        break;
      case FrameKind::refuse:
        fail(SentError::from(frame));
        failure_ = error_->message;
        break;
      case FrameKind::result:
      case FrameKind::fail:
        reply = frame;
        break;
      case FrameKind::notify:
        reasons_.erase(frame.identity);  // of this rank: this one, or the failure before it, takes its place
        if (!failure_) reasons_.emplace(frame.identity, frame.text);
        break;
      case FrameKind::ended:
        if (frame.end > RankEnd::exited) return false;
        if (frame.end != RankEnd::left && !failure_) failure_ = frame.text;
        if (frame.rank == 0) root_end_ = SentError{frame.end == RankEnd::threw ? 'r' : 'f', 0, frame.text};
        break;
      default:
        return false;
    }
    changed_.notify_all();
    return true;
  }
  /// Takes the end of the connection to the root.
  void lose(const std::string& message) {
    const std::lock_guard lock(mutex_);
    if (!error_ && !root_end_ && !failure_) failure_ = message;
    fail(root_end_.value_or(SentError{'f', 0, message}));
    changed_.notify_all();
  }

  /// Waits for `next` or `reply`, and takes it; null at the end of the wait.
  /// @throws the error that the root has sent
  template <class T>
  [[nodiscard]] std::optional<T> await(std::optional<T> Inbox::*value, time_point end, const ErrorContext& context) {
    std::unique_lock lock(mutex_);
    if (!wait_for(changed_, lock, end, [&] { return this->*value || error_; })) return std::nullopt;
    if (!(this->*value)) error_->raise(context);
    return std::exchange(this->*value, std::nullopt);
  }
  /// @name What `await` takes: for its callers to name. Only this class accesses them, under its mutex
  /// @{
  std::optional<RankNumbers> next{};  ///< the next group
  std::optional<Frame> reply{};       ///< to this rank's call
  /// @}

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
  void fail(SentError error) {
    next.reset();
    if (!error_) error_ = std::move(error);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<SentError> error_;     ///< no call can succeed any more
  std::optional<SentError> root_end_;  ///< rank 0 has left
  std::optional<std::string> failure_;
  std::map<std::uint64_t, std::string> reasons_;  ///< of published failures
};

}  // namespace distx::inline DISTX_ABI::detail::control
