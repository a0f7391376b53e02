// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/calls/validate.hpp"
#include "distx/observe/detail/flight_group.hpp"
#include "distx/observe/detail/flight_ring.hpp"

namespace distx::detail {

/// Records the calls of one rank's communicator in the flight recorder.
class FlightLog {
 public:
  FlightLog() = default;
  FlightLog(const FlightLog&) = delete;
  FlightLog& operator=(const FlightLog&) = delete;
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

  /// Records a blocking call as started. Returns null if it is not recorded: the recorder is off, or it is a part of
  /// another call.
  template <Collective Call>
  [[nodiscard]] FlightRecord* begin(const Call& call) {
    if (is_skipped()) return nullptr;
    FlightCall record = described(call, false);
    return &add(record, record.send_count + record.receive_count >= timed_elements, FlightProgress::started);
  }
  /// Records a collective operation that is not a call, such as `split`.
  [[nodiscard]] FlightRecord* begin(const char* operation, const std::source_location& location) {
    if (is_skipped()) return nullptr;
    FlightCall record = described(operation, location, false, false);
    return &add(record, true, FlightProgress::started);
  }
  /// Records an asynchronous call as enqueued.
  template <Collective Call>
  [[nodiscard]] FlightTicket enqueue(const Call& call) {
    latest_ = {};
    if (is_skipped()) return {};
    FlightCall record = described(call, true);
    record.stream_ordered = !std::is_empty_v<typename Call::space::stream>;
    FlightRecord& added = add(record, true, FlightProgress::enqueued);
    return latest_ = {&added, flight_ring->number()};
  }
  /// Returns the asynchronous call that was enqueued last.
  [[nodiscard]] const FlightTicket& latest() const noexcept { return latest_; }

  /// Notes why the communicator throws and, the first time, writes the records.
  void write(const char* error) noexcept;

 private:
  /// Reading the clock takes a tenth of the shortest calls, so only larger ones and every 64th are timed.
  static constexpr std::uint64_t timed_elements = 1024;

  [[nodiscard]] static bool is_skipped() noexcept {
    return !flight_enabled.load(std::memory_order_relaxed) || wait_times != nullptr;
  }
  void prepare();
  FlightRecord& add(const FlightCall& call, bool timed, FlightProgress progress) noexcept {
    const bool reads = timed || flight_ring->number() % 64 == 0;
    return flight_ring->add(call, flight_context, progress, reads ? flight_clock() : 0);
  }
  [[nodiscard]] FlightCall described(const char* operation, const std::source_location& location, bool asynchronous,
                                     bool message) {
    if (flight_ring == nullptr || !named_.load(std::memory_order_acquire)) [[unlikely]]
      prepare();
    FlightCall record;
    record.operation = operation;
    record.file = location.file_name();
    record.function = location.function_name();
    record.line = location.line();
    record.group = group_.id;
    record.rank = group_.rank;
    record.size = group_.size;
    record.world_rank = group_.world_rank;
    record.asynchronous = asynchronous;
    record.message = message;
    record.ordinal = next(message ? messages_ : asynchronous ? asynchronous_ : blocking_);
    record.in_group = blocking_.load(std::memory_order_relaxed) + asynchronous_.load(std::memory_order_relaxed);
    return record;
  }
  template <Collective Call>
  [[nodiscard]] FlightCall described(const Call& call, bool asynchronous) {
    FlightCall record = described(Call::name.data(), call.location, asynchronous, CallTraits<Call>::message);
    if constexpr (requires { call.buffer; }) {
      record.type = call.buffer.type();
      record.send_count = record.receive_count = call.buffer.size();
    } else if constexpr (requires { call.send; }) {
      record.type = Call::kind == CollectiveKind::scatter ? call.receive.type() : call.send.type();
      record.send_count = call.send.size();
      record.receive_count = call.receive.size();
    }
    if constexpr (requires { call.root; }) record.root = call.root;
    if constexpr (requires { call.to; }) record.root = call.to;
    if constexpr (requires { call.from; }) record.from = call.from;
    if constexpr (requires { call.tag; }) record.tag = call.tag;
    if constexpr (requires { call.counts; }) record.uneven = !call.counts.empty();
    if constexpr (CallTraits<Call>::reduces)
      record.op = static_cast<std::uint8_t>(1 + static_cast<int>(call.op.kind()));
    return record;
  }

  using Counter = std::atomic<std::uint64_t>;
  static std::uint64_t next(Counter& counter) noexcept {
    const std::uint64_t number = counter.load(std::memory_order_relaxed) + 1;
    counter.store(number, std::memory_order_relaxed);
    return number;
  }

  FlightGroup group_;
  bool is_open_ = false;
  std::atomic<bool> is_written_{false};
  std::atomic<bool> named_{false};
  Counter blocking_{0}, asynchronous_{0}, messages_{0};  // each is changed by one thread at a time
  std::uint64_t splits_ = 0;
  FlightTicket latest_;
};

}  // namespace distx::detail

#ifndef DISTX_COMPILED
#include "distx/comm/runtime/flight_log_calls.hpp"
#endif
