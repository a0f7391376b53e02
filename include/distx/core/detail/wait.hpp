// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "distx/core/deadline.hpp"

namespace distx::detail {

enum class WaitEnd { ready, stopped, expired };

/// How a thread that waits lets others compute. It yields: who is waited for then goes on at once.
///
/// But beside a program that computes, each yield gives that program a whole turn, of milliseconds, where a thread that
/// sleeps is back as soon as it wakes. So after a yield that took this long the thread sleeps for a while instead; the
/// while grows with every such yield, and shrinks with every other.
class Backoff {
 public:
  using time_point = Deadline::clock::time_point;

  /// @return the time; reading it costs a tenth of a short wait, so who waits hands it back the next time
  time_point operator()(time_point now) {
    if (now < crowded_until_) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(1));
      return Deadline::clock::now();
    }
    // The time may have gone where the caller looked, as MPI moves data when it is asked: the next is timed alone.
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

inline thread_local Backoff backoff;

/// Waits until `ready()`: spins briefly, then gives way; looks at `stopped()` and the deadline once a round.
///
/// With more ranks than cores, spinning long starves the rank that is waited for.
template <class Ready, class Stopped>
WaitEnd wait_until(const Timeout& timeout, Ready&& ready, Stopped&& stopped) {
  for (int spin = 0; spin < 20; ++spin)
    if (ready()) return WaitEnd::ready;
  auto now = Deadline::clock::now();
  const Deadline deadline(timeout, now);
  for (;;) {
    for (int round = 0; round < 16; ++round) {
      if (ready()) return WaitEnd::ready;
      now = backoff(now);
    }
    if (stopped()) return ready() ? WaitEnd::ready : WaitEnd::stopped;
    if (deadline.expired()) return ready() ? WaitEnd::ready : WaitEnd::expired;
  }
}

/// Runs `f` on a thread of its own and waits for it, but not longer than this: afterwards nobody does.
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
    f();  // there are no threads any more
  }
}

}  // namespace distx::detail
