// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

#include "distx/core/deadline.hpp"

namespace distx::detail {

/// The result of a wait.
enum class WaitEnd { ready, stopped, expired };

/// Backoff strategy for polling loops: yields first, so that the awaited thread can run immediately.
///
/// On a core that another program uses, each yield costs a whole time slice, of milliseconds, whereas a sleeping thread
/// is scheduled as soon as it wakes. After a yield that took that long the thread therefore sleeps instead for a while,
/// which grows with every such yield and shrinks with every other.
class Backoff {
 public:
  using time_point = Deadline::clock::time_point;

  /// @param now  what the previous call returned: reading the clock costs a tenth of a short wait
  /// @return the current time
  time_point operator()(time_point now) {
    if (now < crowded_until_) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(1));
      return Deadline::clock::now();
    }
    // The caller may have spent the time itself, as MPI moves data when it is polled: the next yield is timed alone.
    if (suspects_) now = Deadline::clock::now();
    std::this_thread::yield();
    const auto after = Deadline::clock::now();
    const bool timed = std::exchange(suspects_, after - now > turn_);
    if (suspects_ && timed) {
      crowded_until_ = after + while_;
      while_ = std::min(8 * while_, longest_);
    } else {
      while_ = std::max(while_ / 2, shortest_);
    }
    return after;
  }

 private:
  using duration = Deadline::clock::duration;
  static constexpr duration turn_ = std::chrono::milliseconds(2);
  static constexpr duration shortest_ = std::chrono::milliseconds(5);
  static constexpr duration longest_ = std::chrono::milliseconds(500);

  time_point crowded_until_{};
  duration while_ = shortest_;
  bool suspects_ = false;
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

/// Waits until `ready()`: spins briefly, then backs off; checks `stopped()` and the deadline every few polls.
///
/// With more ranks than cores, spinning longer would starve the awaited rank.
template <class Ready, class Stopped>
WaitEnd wait_until(const Timeout& timeout, Ready&& ready, Stopped&& stopped) {
  for (int spin = 0; spin < 20; ++spin)
    if (ready()) return WaitEnd::ready;
  auto now = Deadline::clock::now();
  const Deadline deadline(timeout, now);
  if (wait_times != nullptr) wait_times->begin(now);
  for (;;) {
    for (int round = 0; round < 16; ++round) {
      if (ready()) {
        if (wait_times != nullptr) wait_times->end(now);
        return WaitEnd::ready;
      }
      now = backoff(now);
    }
    if (stopped()) return ready() ? WaitEnd::ready : WaitEnd::stopped;
    if (deadline.expired()) return ready() ? WaitEnd::ready : WaitEnd::expired;
  }
}

/// Runs `f` on a separate thread and waits for it up to the limit; after that, `f` runs on unattended.
template <class F>
void run_in_time(const Timeout& limit, F f) noexcept {
  try {
    const auto ended = std::make_shared<std::atomic<bool>>(false);
    std::thread([=] {
      f();
      ended->store(true);
    }).detach();
    wait_until(limit, [&] { return ended->load(); }, [] { return false; });
  } catch (...) {
    f();  // no thread can be started
  }
}

}  // namespace distx::detail
