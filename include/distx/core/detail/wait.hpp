// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>

#include "distx/core/deadline.hpp"
#include "distx/core/detail/bell.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The result of a wait.
enum class WaitEnd { ready, stopped, expired };

/// The sleep of a wait that nobody ends: the shortest that lets another thread run.
struct Nap {
  template <class Awake>
  void operator()(Awake&&, Deadline::clock::duration) const {
    std::this_thread::sleep_for(std::chrono::nanoseconds(1));
  }
};

/// The sleep of a wait that the awaited thread ends by ringing the bell that `bell()` returns, at most `longest`.
template <class GetBell>
struct SleepOn {
  GetBell bell;
  Deadline::clock::duration longest;
  const Parking& parking = in_process;
  bool patient = false;  ///< whether to poll for long before the first yield: the awaited thread has another core

  template <class Awake>
  void operator()(Awake&& awake, Deadline::clock::duration left) const {
    bell().sleep(awake, std::min(longest, left), parking);
  }
};
template <class GetBell>
SleepOn(GetBell, Deadline::clock::duration) -> SleepOn<GetBell>;
template <class GetBell>
SleepOn(GetBell, Deadline::clock::duration, const Parking&) -> SleepOn<GetBell>;
template <class GetBell>
SleepOn(GetBell, Deadline::clock::duration, const Parking&, bool) -> SleepOn<GetBell>;

/// Backoff strategy for polling loops: yields first, so that the awaited thread can run immediately.
///
/// On a core that another program uses, each yield costs a whole time slice, of milliseconds, whereas a sleeping thread
/// is scheduled as soon as it wakes. After a yield that took that long the thread therefore sleeps instead for a while,
/// which grows with every such yield and shrinks with every other. A thread that will be woken sleeps after any yield
/// that took longer than a few threads take to yield back.
class Backoff {
 public:
  using time_point = Deadline::clock::time_point;
  using duration = Deadline::clock::duration;

  /// @param now  what the previous call returned: reading the clock costs a tenth of a short wait
  /// @param awake  returns whether the thread need not sleep anymore
  /// @return the current time
  template <class Awake, class Sleep>
  time_point operator()(time_point now, Awake&& awake, Sleep&& sleep, duration left) {
    constexpr bool is_woken = !std::same_as<std::remove_cvref_t<Sleep>, Nap>;
    has_slept_ = is_woken && now < crowded_until_;
    if (now < crowded_until_) {
      sleep(awake, left);
      return Deadline::clock::now();
    }
    // The caller may have spent the time itself, as MPI moves data when it is polled: the next yield is timed alone.
    if (suspects_) now = Deadline::clock::now();
    std::this_thread::yield();
    const auto after = Deadline::clock::now();
    const bool timed = std::exchange(suspects_, after - now > (is_woken ? short_turn_ : turn_));
    if (suspects_ && timed) {
      crowded_until_ = after + while_;
      while_ = std::min(8 * while_, longest_);
    } else {
      while_ = std::max(while_ / 2, shortest_);
    }
    has_slept_ = is_woken && suspects_;
    if (!has_slept_) return after;
    sleep(awake, left);
    return Deadline::clock::now();
  }

  /// Returns whether the last step was the sleep of a thread that will be woken: it may have been long.
  [[nodiscard]] bool has_slept() const noexcept { return has_slept_; }
  /// Returns how often to poll before the first yield: a yield is a system call, longer than the wait for a rank that
  /// is about to arrive.
  [[nodiscard]] int spins() const noexcept { return spins_; }
  /// Notes a wait that has outlasted its spins: when these ended, and when the wait did.
  void outlasted(time_point spins_end, time_point now) noexcept {
    spins_ = now - spins_end < close_ ? most_spins_ : std::max(spins_ / 2, least_spins_);
    worked_since_ = now;
  }
  /// Returns how long a patient wait polls before its first yield: as long as this thread has worked since its last
  /// wait that outlasted its spins, so that at most half of the time is lost if the awaited thread needs this core.
  [[nodiscard]] duration patience(time_point now) const noexcept {
    return std::min(now - worked_since_, most_patience_);
  }

 private:
  static constexpr duration turn_ = std::chrono::milliseconds(2);
  static constexpr duration short_turn_ = std::chrono::microseconds(50);
  static constexpr duration shortest_ = std::chrono::milliseconds(5);
  static constexpr duration longest_ = std::chrono::milliseconds(500);
  static constexpr duration close_ = std::chrono::nanoseconds(1500);
  static constexpr duration most_patience_ = std::chrono::milliseconds(4);  // a time slice
  static constexpr int least_spins_ = 20, most_spins_ = 400;

  time_point worked_since_{};
  time_point crowded_until_{};
  duration while_ = shortest_;
  bool suspects_ = false;
  bool has_slept_ = false;
  int spins_ = least_spins_;
};

/// The backoff state of this thread.
inline thread_local Backoff backoff;

/// When a call began to wait and when its last wait ended, in nanoseconds of the steady clock; 0 if it has not waited.
struct WaitTimes {
  std::atomic<std::int64_t> began{0};
  std::atomic<std::int64_t> ended{0};

  void begin(Deadline::clock::time_point now) noexcept {
    if (began.load(std::memory_order_relaxed) == 0) began.store(nanoseconds(now), std::memory_order_relaxed);
  }
  void end(Deadline::clock::time_point now) noexcept { ended.store(nanoseconds(now), std::memory_order_relaxed); }

 private:
  static std::int64_t nanoseconds(Deadline::clock::time_point now) noexcept {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(now.time_since_epoch()).count();
  }
};

/// Where the waits of this thread are recorded, null if nowhere.
inline thread_local constinit WaitTimes* wait_times = nullptr;

/// Waits until `ready()`: spins briefly, then yields, then sleeps by `sleep(awake, limit)` if other threads use this
/// core; checks `stopped()`, which stays true once it is, and the deadline every few polls and around every sleep.
///
/// With more ranks than cores, spinning longer would starve the awaited rank. If each rank has a core, and other
/// programs use it in turn, a yield costs a time slice in which the awaited rank may run: a patient wait polls for up
/// to that time.
template <class Ready, class Stopped, class Sleep = Nap>
WaitEnd wait_until(const Timeout& timeout, Ready&& ready, Stopped&& stopped, Sleep&& sleep = {}) {
  for (int spin = 0, spins = backoff.spins(); spin < spins; ++spin)
    if (ready()) return WaitEnd::ready;
  const auto began = Deadline::clock::now();
  auto now = began;
  const Deadline deadline(timeout, now);
  if (wait_times != nullptr) wait_times->begin(now);
  const auto awake = [&] { return ready() || stopped(); };
  const auto end = [&] {
    if (wait_times != nullptr) wait_times->end(now);
    backoff.outlasted(began, now);
    return WaitEnd::ready;
  };
  if constexpr (requires { sleep.patient; }) {
    auto patience = sleep.patient ? backoff.patience(now) : Deadline::clock::duration::zero();
    if (!deadline.unlimited()) patience = std::min(patience, deadline.end() - now);
    for (int poll = 1; now - began < patience; ++poll) {
      if (ready()) return end();
      now = Deadline::clock::now();
      if (poll % 64 == 0 && stopped()) break;
    }
  }
  for (;;) {
    for (int round = 0; round < 16; ++round) {
      if (ready()) return end();
      const auto left = deadline.unlimited() ? Deadline::clock::duration::max() : deadline.end() - now;
      now = backoff(now, awake, sleep, left);
      if (backoff.has_slept()) break;
    }
    if (stopped()) return ready() ? WaitEnd::ready : WaitEnd::stopped;
    if (deadline.expired()) return ready() ? WaitEnd::ready : WaitEnd::expired;
  }
}

/// Runs `f` on a separate thread and waits for it up to the limit; returns whether it has ended. After that, it runs on
/// unattended.
template <class F>
bool run_in_time(const Timeout& limit, F f) noexcept {
  try {
    const auto ended = std::make_shared<std::atomic<bool>>(false);
    std::thread([=] {
      f();
      ended->store(true);
    }).detach();
    return wait_until(limit, [&] { return ended->load(); }, [] { return false; }) == WaitEnd::ready;
  } catch (...) {
    f();  // no thread can be started
    return true;
  }
}

}  // namespace distx::inline DISTX_ABI::detail
