// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <string_view>

#include "distx/core/detail/wait.hpp"
#include "distx/core/element.hpp"

// The ring of a thread's last calls. Only the thread itself adds records, so adding one takes no lock and no
// read-modify-write operation; any thread may read. The words of a record are stored with release semantics, after its
// number was set to zero, and read with acquire semantics: a record whose number has changed meanwhile is discarded.
namespace distx::detail {

/// The progress of a recorded call.
enum class FlightProgress : std::uint8_t { enqueued, started, completed };

/// What the calls of a thread belong to; a negative number or an empty text is not known.
struct FlightContext {
  std::int64_t step = -1;
  std::int64_t bucket = -1;
  char phase[16] = {};
  char parameter[48] = {};
};

/// A call as it is recorded. The texts are string literals, or as long-lived as literals.
struct FlightCall {
  const char* operation = nullptr;
  const char* file = nullptr;
  const char* function = nullptr;
  std::uint64_t send_count = 0;
  std::uint64_t receive_count = 0;
  std::uint64_t group = 0;
  std::int32_t rank = 0;  ///< in the group
  std::int32_t size = 0;
  std::int32_t world_rank = 0;
  std::uint32_t line = 0;
  std::int32_t root = -1;  ///< or the peer to which a message is sent
  std::int32_t from = -1;  ///< the peer from which a message is received
  std::int32_t tag = 0;
  ElementType type = ElementType::bytes;
  std::uint8_t op = 0;  ///< 1 + OpKind, 0 if the call does not reduce
  bool asynchronous = false;
  bool message = false;
  bool uneven = false;          ///< the blocks differ in size
  bool stream_ordered = false;  ///< the host may never observe its completion
  std::uint64_t ordinal = 0;    ///< from 1: of the call among those of its group and queue
  std::uint64_t in_group = 0;   ///< from 1: of the collective among those of its group
};

/// A call read from a ring.
struct FlightEntry {
  FlightCall call{};
  std::uint64_t number = 0;  ///< in the ring, from 1
  FlightProgress progress = FlightProgress::enqueued;
  // Nanoseconds of the steady clock, 0 if unknown.
  std::int64_t not_before = 0;  ///< the latest time known when the call was made
  std::int64_t enqueued = 0;
  std::int64_t started = 0;
  std::int64_t completed = 0;
  FlightContext context{};
};

/// Returns the time of the steady clock in nanoseconds.
inline std::int64_t flight_clock() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Deadline::clock::now().time_since_epoch()).count();
}

/// A slot of the ring.
class FlightRecord {
 public:
  /// Overwrites the record. Called by the ring's thread.
  void write(std::uint64_t number, const FlightCall& call, const FlightContext* context, FlightProgress progress,
             std::int64_t now) noexcept {
    number_.store(0, std::memory_order_relaxed);
    put(call_, call);
    has_context_.store(context != nullptr, std::memory_order_release);
    if (context != nullptr) put(context_, *context);
    enqueued_.store(now, std::memory_order_release);
    waits_.began.store(0, std::memory_order_release);
    waits_.ended.store(0, std::memory_order_release);
    progress_.store(progress, std::memory_order_release);
    number_.store(number, std::memory_order_release);
  }
  void start(std::int64_t now) noexcept {
    waits_.began.store(now, std::memory_order_relaxed);
    progress_.store(FlightProgress::started, std::memory_order_relaxed);
  }
  /// @param now  0 if the clock was not read: the end of the last wait then stands for it
  void complete(std::int64_t now) noexcept {
    if (now != 0) waits_.ended.store(now, std::memory_order_relaxed);
    progress_.store(FlightProgress::completed, std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t number() const noexcept { return number_.load(std::memory_order_relaxed); }
  [[nodiscard]] WaitTimes& waits() noexcept { return waits_; }
  [[nodiscard]] bool is_completed() const noexcept {
    return progress_.load(std::memory_order_relaxed) == FlightProgress::completed;
  }
  /// Returns whether the clock was read when the call was made, so that it is read again at the end.
  [[nodiscard]] bool is_timed() const noexcept { return enqueued_.load(std::memory_order_relaxed) != 0; }
  void clear() noexcept { number_.store(0, std::memory_order_relaxed); }

  /// Reads the record; returns whether it is whole.
  [[nodiscard]] bool read(FlightEntry& entry) const noexcept {
    entry.number = number_.load(std::memory_order_acquire);
    if (entry.number == 0) return false;
    get(entry.call, call_);
    if (has_context_.load(std::memory_order_acquire))
      get(entry.context, context_);
    else
      entry.context = {};
    entry.progress = progress_.load(std::memory_order_acquire);
    entry.enqueued = enqueued_.load(std::memory_order_acquire);
    entry.started = waits_.began.load(std::memory_order_acquire);
    entry.completed =
        entry.progress == FlightProgress::completed ? waits_.ended.load(std::memory_order_acquire) : std::int64_t{0};
    return number_.load(std::memory_order_relaxed) == entry.number;
  }

 private:
  template <class T>
  using Words = std::array<std::atomic<std::uint64_t>, sizeof(T) / 8>;

  template <class T>
  static void put(Words<T>& words, const T& value) noexcept {
    static_assert(sizeof(T) % 8 == 0 && std::is_trivially_copyable_v<T>);
    std::uint64_t copy[sizeof(T) / 8];
    std::memcpy(copy, &value, sizeof(T));
    for (std::size_t i = 0; i < words.size(); ++i) words[i].store(copy[i], std::memory_order_release);
  }
  template <class T>
  static void get(T& value, const Words<T>& words) noexcept {
    std::uint64_t copy[sizeof(T) / 8];
    for (std::size_t i = 0; i < words.size(); ++i) copy[i] = words[i].load(std::memory_order_acquire);
    std::memcpy(static_cast<void*>(&value), copy, sizeof(T));
  }

  std::atomic<std::uint64_t> number_{0};  // 0 while the record is written
  Words<FlightCall> call_{};
  std::atomic<std::int64_t> enqueued_{0};
  WaitTimes waits_;
  std::atomic<FlightProgress> progress_{FlightProgress::enqueued};
  std::atomic<bool> has_context_{false};
  Words<FlightContext> context_{};
};

/// The last calls of one thread.
class FlightRing {
 public:
  static constexpr std::size_t capacity = 1000;

  /// Adds a record, over the oldest one. Called by the ring's thread.
  FlightRecord& add(const FlightCall& call, const FlightContext* context, FlightProgress progress,
                    std::int64_t now) noexcept {
    FlightRecord& record = records_[next_];
    next_ = next_ + 1 == capacity ? 0 : next_ + 1;
    record.write(++number_, call, context, progress, now);
    return record;
  }
  /// Returns the number of the latest record. Called by the ring's thread.
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
  /// Forgets the records. @pre no thread adds one
  void clear() noexcept {
    for (FlightRecord& record : records_) record.clear();
  }
  [[nodiscard]] const std::array<FlightRecord, capacity>& records() const noexcept { return records_; }

 private:
  std::size_t next_ = 0;
  std::uint64_t number_ = 0;
  std::array<FlightRecord, capacity> records_;
};

/// The ring of this thread, null before its first call.
inline thread_local constinit FlightRing* flight_ring = nullptr;
/// What this thread's calls belong to; null if no label is set.
inline thread_local constinit const FlightContext* flight_context = nullptr;

/// A record of an asynchronous call, for the threads that continue it. The record may since have been overwritten.
struct FlightTicket {
  FlightRecord* record = nullptr;
  std::uint64_t number = 0;

  [[nodiscard]] bool valid() const noexcept { return record != nullptr && record->number() == number; }
  /// Marks the call as started and returns its record, or null.
  [[nodiscard]] FlightRecord* begin() const noexcept {
    if (!valid()) return nullptr;
    record->start(flight_clock());
    return record;
  }
  void complete() const noexcept {
    if (valid() && !record->is_completed()) record->complete(flight_clock());
  }
};

/// Measures the waits of a call that this thread executes, for its record; calls made meanwhile are parts of it and
/// are not recorded.
class FlightScope {
 public:
  explicit FlightScope(FlightRecord* record) noexcept : record_(record), outer_(wait_times) {
    if (record_ != nullptr) wait_times = &record_->waits();
  }
  FlightScope(const FlightScope&) = delete;
  FlightScope& operator=(const FlightScope&) = delete;
  ~FlightScope() {
    if (record_ != nullptr) wait_times = outer_;
  }
  /// Marks the call as completed; without it, the record continues to say that the call has started.
  void complete() noexcept {
    if (record_ != nullptr) record_->complete(record_->is_timed() ? flight_clock() : 0);
  }

 private:
  FlightRecord* record_;
  WaitTimes* outer_;
};

}  // namespace distx::detail
