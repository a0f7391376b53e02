// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>

#include "distx/comm/calls/validate.hpp"
#include "distx/core/deadline.hpp"
#include "distx/core/detail/wait.hpp"
#include "distx/core/detail/watch_thread.hpp"

namespace distx::detail::mpi {

/// The sign of life of a thread that calls MPI. Ends the process if a call of MPI that polls, or that has no
/// nonblocking form, does not return, long after the deadline of the wait.
///
/// Nothing else can end such a call. Open MPI 4.1 waits in a poll for a process of the same host that was stopped or
/// killed between the two stores by which it appends a message to a queue in shared memory (`vader_fifo_read`).
class Pulse {
 public:
  /// Watched from now on, unless the deadline is unlimited or no thread can be started.
  Pulse(const Timeout& deadline, const calls::RankOf& who) : deadline_(deadline), who_(who) {
    if (deadline.unlimited()) return;
    try {
      watch_ = WatchThread::shared<Pulse>({"watch", who.backend, who.rank, who.size, {}});
      watch_->add(this, [this] { return look(), true; });
    } catch (const std::exception&) {  // without it, everything but such a call of MPI still ends
      watch_.reset();
    }
  }
  Pulse(const Pulse&) = delete;
  Pulse& operator=(const Pulse&) = delete;
  ~Pulse() {
    if (watch_ != nullptr) watch_->remove(this);
  }

  /// Marks the thread as inside MPI until the end of a scope, which is entered once at a time.
  class Polling {
   public:
    explicit Polling(Pulse& pulse) noexcept : pulse_(pulse) { pulse_.advance(1); }
    Polling(const Polling&) = delete;
    Polling& operator=(const Polling&) = delete;
    ~Polling() { pulse_.advance(1); }
    /// Called between polls.
    void beat() noexcept { pulse_.advance(2); }

   private:
    Pulse& pulse_;
  };

  /// The time between two looks at all pulses of the process.
  static constexpr std::chrono::milliseconds interval{250};

 private:
  /// Returns how long a thread may poll without a beat: until well after the deadline, because a busy host may not run
  /// it for seconds.
  [[nodiscard]] Timeout::duration limit() const noexcept {
    return deadline_.limit() + std::max<Timeout::duration>(std::chrono::seconds(10), deadline_.limit() / 4);
  }
  void advance(std::uint64_t by) noexcept {
    count_.store(count_.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
  }
  void look() {
    const std::uint64_t now = count_.load(std::memory_order_relaxed);
    stuck_ = now % 2 == 1 && now == seen_ ? stuck_ + interval : Timeout::duration{};
    seen_ = now;
    if (stuck_ < limit()) return;
    const std::string words = "distx: rank " + std::to_string(who_.rank) + " of " + std::to_string(who_.size) + " (" +
                              std::string(who_.backend) + "): a call of MPI has not returned for " +
                              Timeout(limit()).to_string() + ", beyond the deadline of " + deadline_.to_string() +
                              "; a rank that was stopped or killed can cause that. Ends the process\n";
    std::fputs(words.c_str(), stderr);
    std::_Exit(EXIT_FAILURE);
  }

  Timeout deadline_;
  calls::RankOf who_;
  std::atomic<std::uint64_t> count_{0};  ///< changes with every beat, and is odd while the thread polls
  std::uint64_t seen_ = 0;
  Timeout::duration stuck_{};  ///< as far as the watch has slept: a process that is stopped does not count time
  std::shared_ptr<WatchThread> watch_{};
};

/// Waits as `wait_until` does; with a deadline, a call of MPI that does not return ends the process. For rare waits.
template <class Ready, class Stopped>
WaitEnd watched_wait_until(const Timeout& timeout, const calls::RankOf& who, Ready&& ready, Stopped&& stopped) {
  Pulse pulse(timeout, who);
  Pulse::Polling polling(pulse);
  return wait_until(timeout, ready, [&] { return polling.beat(), stopped(); });
}

}  // namespace distx::detail::mpi
