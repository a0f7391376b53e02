// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <source_location>
#include <string>
#include <type_traits>
#include <vector>

#include "distx/core/detail/wait.hpp"
#include "distx/core/element.hpp"

// The ring of a thread's last calls. Only the thread itself adds records, so adding one takes no lock and no
// read-modify-write operation; any thread may read. The words of a record are stored with release semantics, after its
// number was set to zero, and read with acquire semantics: a record whose number has changed meanwhile is discarded.
namespace distx::inline DISTX_ABI::detail {

/// Whether calls are recorded.
inline constinit std::atomic<bool> flight_enabled{true};

/// A communicator of one rank, as dumps describe it.
struct FlightGroup {
  std::uint64_t id = 0;  ///< hash of the name
  /// Equal on all ranks of the group: "0", or "0/2.1" for color 1 of the second split of group 0.
  std::string name{};
  std::string backend{};
  int rank = 0;
  int size = 0;
  int world_rank = 0;
  int world_size = 0;
  std::vector<int> members{};  ///< the ranks in the world, by rank in the group; empty if unknown

  /// Sets the members of a group that has the ranks of the world.
  void join_world() {
    if (!members.empty() || rank != world_rank || size != world_size) return;
    for (int one = 0; one < size; ++one) members.push_back(one);
  }
};

/// The progress of a recorded call.
enum class FlightProgress : std::uint8_t { enqueued, started, completed };

/// The label of a thread's calls; a negative number or an empty text is not known.
struct FlightContext {
  std::int64_t step = -1;
  std::int64_t bucket = -1;
  char phase[16] = {};
  char parameter[48] = {};
};

/// Called with each new label of a thread, and with null at its end: for profilers.
using LabelObserver = void(const FlightContext*) noexcept;
inline constinit std::atomic<LabelObserver*> label_observer{nullptr};

/// The properties of a recorded call that are not numbers.
struct FlightKinds {
  ElementType type = ElementType::bytes;
  std::uint8_t op = 0;  ///< 1 + OpKind, 0 if the call does not reduce
  bool asynchronous = false;
  bool message = false;
  bool uneven = false;          ///< the blocks differ in size
  bool stream_ordered = false;  ///< the host may never observe its completion
  bool labelled = false;        ///< a FlightContext belongs to it
};

/// A call as it is recorded. The texts are string literals, or as long-lived as literals.
struct FlightCall : FlightKinds {
  const char* operation = nullptr;
  std::source_location location{};
  std::uint64_t send_count = 0;
  std::uint64_t receive_count = 0;
  std::uint64_t group = 0;
  std::int32_t rank = 0;  ///< in the group
  std::int32_t size = 0;
  std::int32_t world_rank = 0;
  std::int32_t root = -1;  ///< or the peer to which a message is sent
  std::int32_t from = -1;  ///< the peer from which a message is received
  std::int32_t tag = 0;
  std::uint64_t ordinal = 0;   ///< from 1: of the call among those of its group and queue
  std::uint64_t in_group = 0;  ///< from 1: of the collective among those of its group
};

/// A call as words that one thread stores and any thread reads. Each is stored as soon as its parts are known: all at
/// once they exceed the registers, and a record takes twice the time through memory.
class FlightWords {
 public:
  void set_caller(const char* operation, const std::source_location& location) noexcept {
    store(0, reinterpret_cast<std::uintptr_t>(operation));
    store(1, std::bit_cast<std::uint64_t>(location));
  }
  void set_counts(std::uint64_t send, std::uint64_t receive) noexcept {
    store(2, send);
    store(3, receive);
  }
  void set_group(std::uint64_t id, int rank, int size) noexcept {
    store(4, id);
    store(5, pair(rank, size));
  }
  void set_tag(int world_rank, int tag) noexcept { store(6, pair(world_rank, tag)); }
  void set_peers(int root, int from) noexcept { store(7, pair(root, from)); }
  void set_kinds(const FlightKinds& kinds) noexcept {
    const std::uint64_t flags =
        static_cast<std::uint64_t>(kinds.asynchronous) | static_cast<std::uint64_t>(kinds.message) << 1 |
        static_cast<std::uint64_t>(kinds.uneven) << 2 | static_cast<std::uint64_t>(kinds.stream_ordered) << 3 |
        static_cast<std::uint64_t>(kinds.labelled) << 4;
    store(8, static_cast<std::uint64_t>(kinds.type) | static_cast<std::uint64_t>(kinds.op) << 8 | flags << 16);
  }
  void set_numbers(std::uint64_t ordinal, std::uint64_t in_group) noexcept {
    store(9, ordinal);
    store(10, in_group);
  }

  [[nodiscard]] FlightCall read() const noexcept {
    const std::uint64_t kinds = load(8);
    FlightCall call;
    call.operation = reinterpret_cast<const char*>(load(0));
    call.location = std::bit_cast<std::source_location>(load(1));
    call.send_count = load(2);
    call.receive_count = load(3);
    call.group = load(4);
    call.rank = low(load(5)), call.size = high(load(5));
    call.world_rank = low(load(6)), call.tag = high(load(6));
    call.root = low(load(7)), call.from = high(load(7));
    call.type = static_cast<ElementType>(kinds & 0xff);
    call.op = static_cast<std::uint8_t>(kinds >> 8 & 0xff);
    call.asynchronous = (kinds >> 16 & 1) != 0;
    call.message = (kinds >> 17 & 1) != 0;
    call.uneven = (kinds >> 18 & 1) != 0;
    call.stream_ordered = (kinds >> 19 & 1) != 0;
    call.labelled = (kinds >> 20 & 1) != 0;
    call.ordinal = load(9);
    call.in_group = load(10);
    return call;
  }

 private:
  static_assert(sizeof(std::source_location) == 8 && std::is_trivially_copyable_v<std::source_location>);

  void store(std::size_t i, std::uint64_t word) noexcept { words_[i].store(word, std::memory_order_release); }
  [[nodiscard]] std::uint64_t load(std::size_t i) const noexcept { return words_[i].load(std::memory_order_acquire); }
  static std::uint64_t pair(int low, int high) noexcept {
    return static_cast<std::uint32_t>(low) | static_cast<std::uint64_t>(high) << 32;
  }
  static std::int32_t low(std::uint64_t word) noexcept { return static_cast<std::int32_t>(word & 0xffffffff); }
  static std::int32_t high(std::uint64_t word) noexcept { return static_cast<std::int32_t>(word >> 32); }

  std::array<std::atomic<std::uint64_t>, 11> words_{};
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
  /// Overwrites the record; `describe(words)` sets all words of its call. Called by the ring's thread.
  /// @pre the call is labelled if there is a context
  template <class Describe>
  [[gnu::always_inline]] void write(std::uint64_t number, const FlightContext* context, FlightProgress progress,
                                    std::int64_t now, Describe&& describe) noexcept {
    number_.store(0, std::memory_order_relaxed);
    describe(call_);
    if (context != nullptr) put_context(*context);
    enqueued_.store(now, std::memory_order_release);
    waits_.began.store(0, std::memory_order_release);
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
    entry.call = call_.read();
    entry.context = {};
    if (entry.call.labelled) entry.context = context();
    entry.progress = progress_.load(std::memory_order_acquire);
    entry.enqueued = enqueued_.load(std::memory_order_acquire);
    entry.started = waits_.began.load(std::memory_order_acquire);
    // A call that was not timed and has not waited leaves the end of an earlier one.
    const bool has_end = entry.progress == FlightProgress::completed && (entry.enqueued != 0 || entry.started != 0);
    entry.completed = has_end ? waits_.ended.load(std::memory_order_acquire) : std::int64_t{0};
    return number_.load(std::memory_order_relaxed) == entry.number;
  }

 private:
  static constexpr std::size_t context_words = sizeof(FlightContext) / 8;
  static_assert(sizeof(FlightContext) % 8 == 0);

  [[gnu::noinline]] void put_context(const FlightContext& context) noexcept {
    const auto words = std::bit_cast<std::array<std::uint64_t, context_words>>(context);
    for (std::size_t i = 0; i < context_words; ++i) context_[i].store(words[i], std::memory_order_release);
  }
  [[nodiscard]] FlightContext context() const noexcept {
    std::array<std::uint64_t, context_words> words;
    for (std::size_t i = 0; i < context_words; ++i) words[i] = context_[i].load(std::memory_order_acquire);
    return std::bit_cast<FlightContext>(words);
  }

  std::atomic<std::uint64_t> number_{0};  // 0 while the record is written
  FlightWords call_;
  std::atomic<std::int64_t> enqueued_{0};
  WaitTimes waits_;
  std::atomic<FlightProgress> progress_{FlightProgress::enqueued};
  std::array<std::atomic<std::uint64_t>, context_words> context_{};
};

/// The last calls of one thread.
class FlightRing {
 public:
  static constexpr std::size_t capacity = 1000;

  /// Adds a record, over the oldest one; see FlightRecord::write. Called by the ring's thread.
  template <class Describe>
  [[gnu::always_inline]] FlightRecord& add(const FlightContext* context, FlightProgress progress, std::int64_t now,
                                           Describe&& describe) noexcept {
    FlightRecord& record = *next_;
    next_ = next_ == &records_.back() ? records_.data() : next_ + 1;
    record.write(++number_, context, progress, now, describe);
    return record;
  }
  /// Returns the number of the latest record. Called by the ring's thread.
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
  /// Forgets the records. @pre no thread adds one
  void clear() noexcept {
    if (number_ == cleared_) return;  // most rings of many ranks
    for (FlightRecord& record : records_) record.clear();
    cleared_ = number_;
  }
  [[nodiscard]] const std::array<FlightRecord, capacity>& records() const noexcept { return records_; }

 private:
  std::uint64_t number_ = 0, cleared_ = 0;
  std::array<FlightRecord, capacity> records_;
  FlightRecord* next_ = records_.data();
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

}  // namespace distx::inline DISTX_ABI::detail
