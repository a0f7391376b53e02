// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "distx/connect/detail/local_failure_channel.hpp"
#include "distx/connect/failure_channel.hpp"
#include "distx/connect/tcp/detail/frame.hpp"
#include "distx/core/deadline.hpp"
#include "distx/core/error.hpp"
#include "distx/posix/process.hpp"

namespace distx::detail::tcp {

/// An error as it is sent: the letter of its type, the rank that failed, and the message.
struct SentError {
  char type = 'c';  ///< c: ConnectError, f: RankFailure, m: MismatchError, r: RevokedError, t: TimeoutError
  int failed_rank = -1;
  std::string message;

  [[noreturn]] void raise(const ErrorContext& context) const {
    if (type == 'f') throw RankFailure(message, failed_rank, nullptr, context);
    if (type == 'm') throw MismatchError(message, context);
    if (type == 'r') throw RevokedError(message, context);
    if (type == 't') throw TimeoutError(message, context);
    throw ConnectError(message, context);
  }
  [[nodiscard]] Frame frame(FrameKind kind) const {
    return FrameWriter(kind)
        .number(static_cast<std::uint64_t>(type))
        .number(static_cast<std::uint64_t>(failed_rank) + 1)
        .text(message)
        .finish();
  }
  [[nodiscard]] static SentError from(const Frame& frame) {
    FrameReader in(frame.body);
    SentError error;
    error.type = static_cast<char>(in.small(127));
    error.failed_rank = in.small(1 << 30) - 1;
    error.message = in.text();
    return error;
  }
};

using posix::Process;

/// @name A process of the job as it is sent
/// @{
inline void write_process(FrameWriter& out, const Process& process) {
  out.text(process.host).text(process.host_name).number(static_cast<std::uint64_t>(process.id));
}
[[nodiscard]] inline Process read_process(FrameReader& in) {
  Process process;
  process.host = in.text();
  process.host_name = in.text();
  process.id = in.small(1 << 30);
  return process;
}
/// @}

/// The ways in which a rank can end.
enum class RankEnd : std::uint8_t { left, threw, exited };

/// Says that no rank can continue, because rank 0 does not.
[[nodiscard]] inline std::string without_root(const std::string& problem) {
  return "rank 0 serves the other ranks, which cannot continue without it (" + problem +
         "): restart all ranks from the last checkpoint";
}

/// The ranks after a call of `shrink` or `grow`, and this rank among them.
struct NextGroup {
  int rank = 0;
  std::vector<Process> processes;
};

/// The frames that a rank has received from rank 0, for the threads that wait for them or poll.
class Inbox {
 public:
  /// Takes a frame; called by the thread that serves the connection. Returns false if it is malformed.
  bool take(const Frame& frame) {
    const std::lock_guard lock(mutex_);
    FrameReader in(frame.body);
    switch (frame.kind) {
      case FrameKind::welcome: {
        auto all = processes_from(in);
        if (!in.complete()) return false;
        processes_ = std::move(all);
        break;
      }
      case FrameKind::regrouped: {
        if (in.small(1) == 0) {
          const std::string message(in.text());
          if (!in.complete()) return false;
          failure_ = message;
          error_ = SentError{'c', -1, message};
          break;
        }
        NextGroup next{in.small(1 << 20), processes_from(in)};
        if (!in.complete()) return false;
        next_ = std::move(next);
        reply_.reset();  // these concern the group before
        root_end_.reset();
        failure_.reset();
        break;
      }
      case FrameKind::refuse:
        if (!error_) error_ = SentError::from(frame);
        break;
      case FrameKind::result:
      case FrameKind::fail:
        reply_ = frame;
        break;
      case FrameKind::published: {
        const auto identity = in.number();
        board_.publish(identity, std::string(in.text()));
        break;
      }
      case FrameKind::ended: {
        const int rank = in.small(1 << 20);
        const auto how = static_cast<RankEnd>(in.small(2));
        std::string message(in.text());
        if (!in.complete()) return false;
        if (how != RankEnd::left && !failure_) failure_ = message;
        if (rank == 0) root_end_ = SentError{how == RankEnd::threw ? 'r' : 'f', 0, std::move(message)};
        break;
      }
      default:
        return false;
    }
    changed_.notify_all();
    return true;
  }
  /// Takes the end of the connection to rank 0.
  void lose(const std::string& message) {
    const std::lock_guard lock(mutex_);
    if (!error_) {
      error_ = root_end_ ? *root_end_ : SentError{'f', 0, message};
      if (!root_end_ && !failure_) failure_ = message;
    }
    changed_.notify_all();
  }

  /// Waits until all ranks have joined, and returns their processes; null at the end of the wait.
  /// @throws the error that rank 0 has sent
  [[nodiscard]] std::optional<std::vector<Process>> await_welcome(const Deadline& deadline,
                                                                  const ErrorContext& context) {
    std::unique_lock lock(mutex_);
    if (!wait(lock, deadline, [&] { return processes_ || error_; })) return std::nullopt;
    if (!processes_) error_->raise(context);
    return processes_;
  }
  /// Waits for the reply to a call; null at the end of the wait.
  [[nodiscard]] std::optional<Frame> await_reply(const Deadline& deadline, const ErrorContext& context) {
    std::unique_lock lock(mutex_);
    if (!wait(lock, deadline, [&] { return reply_ || error_; })) return std::nullopt;
    if (!reply_) error_->raise(context);
    return std::exchange(reply_, std::nullopt);
  }

  /// Waits for the next group; null at the end of the wait.
  /// @throws the error that rank 0 has sent
  [[nodiscard]] std::optional<NextGroup> await_next(const Deadline& deadline, const ErrorContext& context) {
    std::unique_lock lock(mutex_);
    if (!wait(lock, deadline, [&] { return next_ || error_; })) return std::nullopt;
    if (error_) error_->raise(context);
    return std::exchange(next_, std::nullopt);
  }

  /// Notes a failure that this rank publishes, until rank 0 says which of all ranks' was the first.
  void note_own(std::uint64_t identity, const std::string& reason) {
    const std::lock_guard lock(mutex_);
    own_.emplace(identity, reason);
  }
  [[nodiscard]] std::optional<std::string> poll(std::uint64_t identity) {
    const std::lock_guard lock(mutex_);
    if (auto reason = board_.poll(identity)) return reason;
    if (const auto mine = own_.find(identity); mine != own_.end()) return mine->second;
    return failure_;
  }
  /// Returns whether a rank has failed or rank 0 cannot be reached.
  [[nodiscard]] bool has_failure() {
    const std::lock_guard lock(mutex_);
    return failure_ || error_;
  }

 private:
  static std::vector<Process> processes_from(FrameReader& in) {
    const int size = in.small(1 << 20);
    std::vector<Process> all;
    for (int rank = 0; rank < size && in.valid(); ++rank) all.push_back(read_process(in));
    return all;
  }
  template <class Ready>
  bool wait(std::unique_lock<std::mutex>& lock, const Deadline& deadline, Ready&& ready) {
    if (!deadline.unlimited()) return changed_.wait_until(lock, deadline.end(), ready);
    changed_.wait(lock, ready);
    return true;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::vector<Process>> processes_;
  std::optional<NextGroup> next_;
  std::optional<Frame> reply_;
  std::optional<SentError> error_;     ///< no call can succeed any more
  std::optional<SentError> root_end_;  ///< rank 0 has left
  std::optional<std::string> failure_;
  std::map<std::uint64_t, std::string> own_;
  LocalFailureChannel board_;
};

}  // namespace distx::detail::tcp
