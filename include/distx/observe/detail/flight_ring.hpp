// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
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

/// The label of a thread's calls; a negative number or an empty text is not known.
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

/// A call as words. Shifts instead of copied bytes: reading a word whose parts were just written would stall.
struct FlightWords {
  static constexpr std::size_t count = 12;

  [[nodiscard]] static std::array<std::uint64_t, count> pack(const FlightCall& call) noexcept {
    const std::uint64_t flags =
        static_cast<std::uint64_t>(call.asynchronous) | static_cast<std::uint64_t>(call.message) << 1 |
        static_cast<std::uint64_t>(call.uneven) << 2 | static_cast<std::uint64_t>(call.stream_ordered) << 3;
    const std::uint64_t kinds =
        static_cast<std::uint64_t>(call.type) | static_cast<std::uint64_t>(call.op) << 8 | flags << 16;
    return {reinterpret_cast<std::uintptr_t>(call.operation),
            reinterpret_cast<std::uintptr_t>(call.file),
            reinterpret_cast<std::uintptr_t>(call.function),
            call.send_count,
            call.receive_count,
            call.group,
            pair(static_cast<std::uint32_t>(call.rank), static_cast<std::uint32_t>(call.size)),
            pair(static_cast<std::uint32_t>(call.world_rank), call.line),
            pair(static_cast<std::uint32_t>(call.root), static_cast<std::uint32_t>(call.from)),
            pair(static_cast<std::uint32_t>(call.tag), static_cast<std::uint32_t>(kinds)),
            call.ordinal,
            call.in_group};
  }
  [[nodiscard]] static FlightCall unpack(const std::array<std::uint64_t, count>& words) noexcept {
    const std::uint64_t kinds = words[9] >> 32;
    FlightCall call;
    call.operation = reinterpret_cast<const char*>(words[0]);
    call.file = reinterpret_cast<const char*>(words[1]);
    call.function = reinterpret_cast<const char*>(words[2]);
    call.send_count = words[3];
    call.receive_count = words[4];
    call.group = words[5];
    call.rank = low(words[6]), call.size = high(words[6]);
    call.world_rank = low(words[7]), call.line = static_cast<std::uint32_t>(words[7] >> 32);
    call.root = low(words[8]), call.from = high(words[8]);
    call.tag = low(words[9]);
    call.type = static_cast<ElementType>(kinds & 0xff);
    call.op = static_cast<std::uint8_t>(kinds >> 8 & 0xff);
    call.asynchronous = (kinds >> 16 & 1) != 0;
    call.message = (kinds >> 17 & 1) != 0;
    call.uneven = (kinds >> 18 & 1) != 0;
    call.stream_ordered = (kinds >> 19 & 1) != 0;
    call.ordinal = words[10];
    call.in_group = words[11];
    return call;
  }

 private:
  static std::uint64_t pair(std::uint32_t low, std::uint32_t high) noexcept {
    return low | static_cast<std::uint64_t>(high) << 32;
  }
  static std::int32_t low(std::uint64_t word) noexcept { return static_cast<std::int32_t>(word & 0xffffffff); }
  static std::int32_t high(std::uint64_t word) noexcept { return static_cast<std::int32_t>(word >> 32); }
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
    put(call_, FlightWords::pack(call));
    has_context_.store(context != nullptr, std::memory_order_release);
    if (context != nullptr) put(context_, std::bit_cast<std::array<std::uint64_t, context_words>>(*context));
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
    entry.call = FlightWords::unpack(get(call_));
    entry.context = {};
    if (has_context_.load(std::memory_order_acquire)) entry.context = std::bit_cast<FlightContext>(get(context_));
    entry.progress = progress_.load(std::memory_order_acquire);
    entry.enqueued = enqueued_.load(std::memory_order_acquire);
    entry.started = waits_.began.load(std::memory_order_acquire);
    entry.completed =
        entry.progress == FlightProgress::completed ? waits_.ended.load(std::memory_order_acquire) : std::int64_t{0};
    return number_.load(std::memory_order_relaxed) == entry.number;
  }

 private:
  template <std::size_t Count>
  using Words = std::array<std::atomic<std::uint64_t>, Count>;
  static constexpr std::size_t context_words = sizeof(FlightContext) / 8;
  static_assert(sizeof(FlightContext) % 8 == 0);

  template <std::size_t Count>
  static void put(Words<Count>& words, const std::array<std::uint64_t, Count>& values) noexcept {
    for (std::size_t i = 0; i < Count; ++i) words[i].store(values[i], std::memory_order_release);
  }
  template <std::size_t Count>
  [[nodiscard]] static std::array<std::uint64_t, Count> get(const Words<Count>& words) noexcept {
    std::array<std::uint64_t, Count> values;
    for (std::size_t i = 0; i < Count; ++i) values[i] = words[i].load(std::memory_order_acquire);
    return values;
  }

  std::atomic<std::uint64_t> number_{0};  // 0 while the record is written
  Words<FlightWords::count> call_{};
  std::atomic<std::int64_t> enqueued_{0};
  WaitTimes waits_;
  std::atomic<FlightProgress> progress_{FlightProgress::enqueued};
  std::atomic<bool> has_context_{false};
  Words<context_words> context_{};
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
/// The label of this thread's calls, null if there is none.
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
