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

/// The frame that a rank awaits: the reply to its call, which may be `grow`'s larger group; or its next group alone.
enum class Awaited : std::uint8_t { reply, group };

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
        reply_ = frame;
        root_end_.reset();  // these concern the group before
        failure_.reset();
        break;
      case FrameKind::refuse:
        fail(frame);
        failure_ = error_->text;
        break;
      case FrameKind::result:
      case FrameKind::fail:
        reply_ = frame;
        break;
      case FrameKind::notify:
        reasons_.erase(frame.identity);  // of this rank: this one, or the failure before it, takes its place
        if (!failure_) reasons_.emplace(frame.identity, frame.text);
        break;
      case FrameKind::ended:
        if (frame.end > RankEnd::exited) return false;
        if (frame.end != RankEnd::left && !failure_) failure_ = frame.text;
        if (frame.rank == 0) root_end_ = frame;
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
    fail(root_end_.value_or(end_of(0, RankEnd::exited, message)));
    changed_.notify_all();
  }

  /// Waits for the reply to this rank's call, or for its next group alone, and takes it; null at the end of the wait.
  /// @throws the error that the root has sent
  [[nodiscard]] std::optional<Frame> await(Awaited what, time_point end, const ErrorContext& context) {
    std::unique_lock lock(mutex_);
    const auto is_there = [&] { return reply_ && (what == Awaited::reply || reply_->kind == FrameKind::regrouped); };
    if (!wait_for(changed_, lock, end, [&] { return is_there() || error_; })) return std::nullopt;
    if (!is_there()) raise(*error_, context);
    return std::exchange(reply_, std::nullopt);
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
  void fail(const Frame& error) {
    if (reply_ && reply_->kind == FrameKind::regrouped) reply_.reset();
    if (!error_) error_ = error;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Frame> reply_;     ///< to this rank's call, or its next group
  std::optional<Frame> error_;     ///< no call can succeed any more
  std::optional<Frame> root_end_;  ///< rank 0 has left
  std::optional<std::string> failure_;
  std::map<std::uint64_t, std::string> reasons_;  ///< of published failures
};

}  // namespace distx::inline DISTX_ABI::detail::control
