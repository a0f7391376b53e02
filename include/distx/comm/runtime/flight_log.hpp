// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/calls/validate.hpp"
#include "distx/observe/detail/flight_ring.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Records the calls of one rank's communicator in the flight recorder.
class FlightLog {
 public:
  ~FlightLog();

  /// Announces the communicator. Called once.
  void open(const RankOf& self);
  /// Names this communicator after the one that it was split from.
  /// @param members  the `world_rank` of each rank, empty if unknown
  /// @pre it has not been used
  void split_from(FlightLog& parent, int color, std::vector<int> members = {});
  /// Returns this rank's number in the largest communicator that it has made.
  [[nodiscard]] int world_rank() {
    prepare();
    return group_.world_rank;
  }

  /// Records a blocking call as started. Returns null if it is not recorded: the recorder is off, it is a part of
  /// another call, or there is one rank.
  template <MemorySpace Space>
  [[nodiscard, gnu::always_inline]] FlightRecord* begin(const Call<Space>& call) {
    // A call of one rank waits for nobody, and recording it would take as long as the call.
    if (group_.size == 1 || is_skipped()) return nullptr;
    return &add(call, std::max(call.send.size(), call.receive.size()) >= timed_elements, FlightProgress::started);
  }
  /// Records a collective operation that is not a call, such as `split`.
  [[nodiscard]] FlightRecord* begin(const char* operation, const std::source_location& location) {
    if (is_skipped()) return nullptr;
    const std::int64_t now = time(true);
    return &flight_ring->add(flight_context, FlightProgress::started, now, [&](FlightWords& words) {
      describe(words, operation, location, blocking_);
      words.set_counts(0, 0);
      words.set_tag(group_.world_rank, 0);
      words.set_peers(-1, -1);
      words.set_kinds({.labelled = flight_context != nullptr});
    });
  }
  /// Records an asynchronous call as enqueued.
  template <MemorySpace Space>
  [[nodiscard]] FlightTicket enqueue(const Call<Space>& call) {
    latest_ = {};
    if (is_skipped()) return {};
    FlightRecord& added = add(call, true, FlightProgress::enqueued);
    return latest_ = {&added, flight_ring->number()};
  }
  /// Returns the asynchronous call that was enqueued last.
  [[nodiscard]] const FlightTicket& latest() const noexcept { return latest_; }

  /// Notes why the communicator throws and, the first time, writes the records.
  void write(const char* error) noexcept;

 private:
  using Counter = std::atomic<std::uint64_t>;
  /// Reading the clock takes a tenth of the shortest calls, so only larger ones and every 256th are timed.
  static constexpr std::uint64_t timed_elements = 1024;

  [[nodiscard]] static bool is_skipped() noexcept {
    return !flight_enabled.load(std::memory_order_relaxed) || wait_times != nullptr;
  }
  void prepare();
  /// Prepares a record. Returns the time at which its call begins, or 0.
  [[nodiscard]] std::int64_t time(bool timed) {
    if (flight_ring == nullptr || !named_.load(std::memory_order_acquire)) [[unlikely]]
      prepare();
    return timed || flight_ring->number() % 256 == 0 ? flight_clock() : 0;
  }
  template <MemorySpace Space>
  [[gnu::always_inline]] FlightRecord& add(const Call<Space>& call, bool timed, FlightProgress progress) {
    const std::int64_t now = time(timed);
    return flight_ring->add(
        flight_context, progress, now, [&](FlightWords & words) __attribute__((always_inline)) {
          describe(words, call, progress == FlightProgress::enqueued);
        });
  }
  void describe(FlightWords& words, const char* operation, const std::source_location& location,
                Counter& calls) noexcept {
    words.set_caller(operation, location);
    words.set_group(group_.id, group_.rank, group_.size);
    const std::uint64_t ordinal = calls.load(std::memory_order_relaxed) + 1;
    calls.store(ordinal, std::memory_order_relaxed);
    words.set_numbers(ordinal,
                      blocking_.load(std::memory_order_relaxed) + asynchronous_.load(std::memory_order_relaxed));
  }
  template <MemorySpace Space>
  [[gnu::always_inline]] void describe(FlightWords& words, const Call<Space>& call, bool asynchronous) noexcept {
    const CallTraits& traits = traits_of(call.kind);
    FlightKinds kinds{.type = with_compared_span(call, [](const auto& span) { return span.type(); }),
                      .asynchronous = asynchronous,
                      .message = traits.message,
                      .labelled = flight_context != nullptr};
    kinds.stream_ordered = asynchronous && !std::is_empty_v<typename Space::stream>;
    kinds.uneven = !call.counts.empty() && call.kind != CollectiveKind::all_to_all;
    if (traits.reduces) kinds.op = static_cast<std::uint8_t>(1 + static_cast<int>(call.op.kind()));
    describe(words, name_of(call.kind).data(), call.location,
             traits.message ? messages_
             : asynchronous ? asynchronous_
                            : blocking_);
    // A buffer of a call that has one counts as both.
    const bool one = traits.message && traits.same_count;
    const std::size_t sent = call.send.size(), received = call.receive.size();
    words.set_counts(one ? sent + received : sent, one ? sent + received : received);
    words.set_tag(group_.world_rank, call.tag);
    words.set_peers(traits.rooted ? call.root : call.to, call.from);
    words.set_kinds(kinds);
  }

  FlightGroup group_;
  bool is_open_ = false;
  std::atomic<bool> is_written_{false};
  std::atomic<bool> named_{false};
  Counter blocking_{0}, asynchronous_{0}, messages_{0};  // each is changed by one thread at a time
  std::uint64_t splits_ = 0;
  FlightTicket latest_;
};

}  // namespace distx::inline DISTX_ABI::detail
