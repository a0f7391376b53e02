// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "distx/comm/calls/validate.hpp"
#include "distx/core/deadline.hpp"

namespace distx::detail::mpi {

/// The sign of life of a thread that polls MPI. Only that thread changes it.
class Pulse {
 public:
  Pulse(const Timeout& deadline, const calls::RankOf& who) : deadline_(deadline), who_(who) {}

  /// Says that the thread polls, until the end of a scope, which is entered once at a time.
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

  /// Returns a number that changes with every beat, and is odd while the thread polls.
  [[nodiscard]] std::uint64_t count() const noexcept { return count_.load(std::memory_order_relaxed); }
  /// Returns how long a thread may poll without a beat: until well after the deadline, because a busy host may not run
  /// it for seconds.
  [[nodiscard]] Timeout::duration limit() const noexcept {
    return deadline_.limit() + std::max<Timeout::duration>(std::chrono::seconds(10), deadline_.limit() / 4);
  }
  [[nodiscard]] std::string to_string() const {
    return "rank " + std::to_string(who_.rank) + " of " + std::to_string(who_.size) + " (" + std::string(who_.backend) +
           "): a call of MPI has not returned for " + Timeout(limit()).to_string() + ", beyond the deadline of " +
           deadline_.to_string();
  }

 private:
  void advance(std::uint64_t by) noexcept { count_.store(count() + by, std::memory_order_relaxed); }

  std::atomic<std::uint64_t> count_{0};
  Timeout deadline_;
  calls::RankOf who_;
};

/// Ends this process if a call of MPI that only polls does not return, long after the deadline of the wait.
///
/// Nothing else can end such a call. Open MPI 4.1 waits inside it for a process of the same host that was stopped or
/// killed between the two stores by which it appends a message to a queue in shared memory (`vader_fifo_read`).
class Sentinel {
 public:
  Sentinel() = default;
  Sentinel(const Sentinel&) = delete;
  Sentinel& operator=(const Sentinel&) = delete;
  ~Sentinel() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  /// Returns the pulse of a thread, which is watched for as long as it exists unless the deadline is unlimited or no
  /// thread can be started.
  [[nodiscard]] std::shared_ptr<Pulse> watch(const Timeout& deadline, const calls::RankOf& who) {
    auto pulse = std::make_shared<Pulse>(deadline, who);
    if (deadline.unlimited()) return pulse;
    const std::lock_guard lock(mutex_);
    std::erase_if(watched_, [](const Watched& watched) { return watched.pulse.expired(); });
    watched_.push_back({pulse});
    try {
      if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    } catch (const std::system_error&) {  // without it, everything but such a call of MPI still ends
    }
    return pulse;
  }

 private:
  struct Watched {
    std::weak_ptr<Pulse> pulse;
    std::uint64_t seen = 0;
    Timeout::duration stuck{};  ///< as far as this thread has slept: a process that is stopped does not count time
  };
  static constexpr std::chrono::milliseconds tick{250};

  void run() {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, tick, [this] { return ends_; }))
      for (Watched& watched : watched_) look(watched);
  }
  static void look(Watched& watched) {
    const auto pulse = watched.pulse.lock();
    if (pulse == nullptr) return;
    const std::uint64_t now = pulse->count();
    watched.stuck = now % 2 == 1 && now == watched.seen ? watched.stuck + tick : Timeout::duration{};
    watched.seen = now;
    if (watched.stuck < pulse->limit()) return;
    std::fputs(
        ("distx: " + pulse->to_string() + "; a rank that was stopped or killed can cause that. Ends the process\n")
            .c_str(),
        stderr);
    std::_Exit(EXIT_FAILURE);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::vector<Watched> watched_;
  std::thread thread_;
};

}  // namespace distx::detail::mpi
