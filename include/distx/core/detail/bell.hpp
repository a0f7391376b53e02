// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Puts threads to sleep on a word until another thread has changed it and wakes them.
struct Parking {
  using Word = std::atomic<std::uint32_t>;
  void (*sleep)(Word& word, std::uint32_t seen, std::chrono::nanoseconds limit) noexcept;
  void (*wake_all)(Word& word) noexcept;
};

/// Parking for the threads of one process.
inline constexpr Parking in_process = [] {
  struct WaitQueue {
    std::mutex mutex;
    std::condition_variable changed;

    static WaitQueue& of(const Parking::Word& word) {
      static std::array<WaitQueue, 64>& queues =
          *new std::array<WaitQueue, 64>;  // never destroyed: threads may outlive it
      return queues[reinterpret_cast<std::uintptr_t>(&word) / 64 % queues.size()];
    }
  };
  return Parking{.sleep =
                     [](Parking::Word& word, std::uint32_t seen, std::chrono::nanoseconds limit) noexcept {
                       WaitQueue& queue = WaitQueue::of(word);
                       std::unique_lock lock(queue.mutex);
                       if (word.load(std::memory_order_seq_cst) == seen) queue.changed.wait_for(lock, limit);
                     },
                 .wake_all =
                     [](Parking::Word& word) noexcept {
                       WaitQueue& queue = WaitQueue::of(word);
                       { const std::lock_guard lock(queue.mutex); }  // no thread is between its look and its sleep
                       queue.changed.notify_all();
                     }};
}();

/// What threads, also of several processes, sleep on until another one has changed what they wait for.
///
/// Ringing costs one load if no thread sleeps. A sleep ends by itself after its limit: a ring that is missed, or whose
/// ringer has died, costs time only.
struct Bell {
  std::atomic<std::uint32_t> rings{0};
  std::atomic<std::uint32_t> sleepers{0};

  /// Wakes all sleepers. @pre what they wait for was stored sequentially consistently
  void ring(const Parking& parking = in_process) noexcept {
    if (sleepers.load(std::memory_order_seq_cst) == 0) return;
    rings.fetch_add(1, std::memory_order_seq_cst);
    parking.wake_all(rings);
  }

  /// Sleeps until the bell rings or the limit is over, unless `awake()`.
  template <class Awake>
  void sleep(Awake&& awake, std::chrono::nanoseconds limit, const Parking& parking = in_process) noexcept {
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t seen = rings.load(std::memory_order_seq_cst);
    if (!awake() && limit.count() > 0) parking.sleep(rings, seen, limit);
    sleepers.fetch_sub(1, std::memory_order_relaxed);
  }
};

/// Opens in steps 1, 2, …: threads that wait for a step poll one word, and sleep on one bell.
struct alignas(64) Gate {
  std::atomic<std::uint64_t> step{0};
  Bell bell;

  void open(std::uint64_t now, const Parking& parking = in_process) noexcept {
    step.store(now, std::memory_order_seq_cst);
    bell.ring(parking);
  }
  [[nodiscard]] bool is_open(std::uint64_t now) const noexcept { return step.load(std::memory_order_acquire) >= now; }
};

}  // namespace distx::inline DISTX_ABI::detail
