// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <optional>
#include <string>

#include "distx/comm/calls/validate.hpp"
#include "distx/comm/runtime/message_header.hpp"
#include "distx/cuda/buffer.hpp"

// The comparison of asynchronous calls. The host does not wait for it: NCCL exchanges descriptions in page-locked
// memory before the call, and the host reads them while the call is in progress. If the calls differ, they may never
// complete.
namespace distx::inline DISTX_ABI::nccl::detail {

/// A rank's description of its call.
class CallRecord {
 public:
  CallRecord() = default;
  explicit CallRecord(const calls::Fingerprint& call) noexcept
      : words_(std::bit_cast<Words>(call)), seal_(distx::detail::fnv1a(words_)) {}

  /// Returns the description, or nothing until all of it has arrived from another rank.
  [[nodiscard, gnu::no_sanitize_thread]] std::optional<calls::Fingerprint> read() const noexcept {
    const volatile std::uint64_t* arriving = words_.data();  // the GPU writes it meanwhile
    Words words;
    for (std::uint64_t& word : words) word = *arriving++;
    if (*static_cast<const volatile std::uint64_t*>(&seal_) != distx::detail::fnv1a(words)) return std::nullopt;
    return std::bit_cast<calls::Fingerprint>(words);
  }

 private:
  using Words = std::array<std::uint64_t, sizeof(calls::Fingerprint) / sizeof(std::uint64_t)>;
  Words words_{};
  std::uint64_t seal_ = 0;
};

static_assert(sizeof(CallRecord) == 64 && std::has_unique_object_representations_v<calls::Fingerprint>);

/// Returns the description of a message, which both of its ranks must agree on: its MessageHeader.
template <class AnySpan>
[[nodiscard]] calls::Fingerprint fingerprint_of_message(const AnySpan& span, std::uint64_t lengths) noexcept {
  calls::Fingerprint f;
  f.count = span.size();
  f.counts = lengths;
  f.element_bytes = static_cast<std::uint32_t>(span.element_bytes());
  f.type = span.type();
  f.kind = calls::CollectiveKind::send;
  return f;
}

/// The descriptions of one asynchronous call.
class Comparison {
 public:
  /// Allocates memory for `ranks` descriptions if there is less.
  void reserve(int ranks) {
    const auto needed = std::max<std::size_t>(2, static_cast<std::size_t>(ranks));
    if (records_.size() < needed) records_ = cuda::PinnedBuffer<CallRecord>(needed);
  }
  /// Begins the comparison of a collective. Returns every rank's description, in which this rank's is set.
  [[nodiscard]] CallRecord* open(const calls::Fingerprint& call, const calls::RankOf& self) {
    reserve(self.size);
    std::ranges::fill(records_, CallRecord());
    records_[static_cast<std::size_t>(self.rank)] = CallRecord(call);
    begin(call, 0, self.size);
    return records_.data();
  }
  /// Returns the description of a message that this rank sends.
  [[nodiscard]] CallRecord* sent(const calls::Fingerprint& message) {
    reserve(2);
    records_[0] = CallRecord(message);
    return &records_[0];
  }
  /// Begins the comparison of a message that this rank receives. Returns where its description arrives.
  [[nodiscard]] CallRecord* open_received(const calls::Fingerprint& message, int from) {
    reserve(2);
    records_[1] = CallRecord();
    begin(message, from, 1);
    return &records_[1];
  }
  void close() noexcept { open_.store(false, std::memory_order_release); }
  [[nodiscard]] bool is_open() const noexcept { return open_.load(std::memory_order_acquire); }

  /// Returns how another rank's call differs, if that is known; ends the comparison if none does.
  /// @param complete  whether the call is complete: a description that is missing then never arrives
  [[nodiscard]] std::optional<std::string> difference(bool complete) {
    if (!is_open()) return std::nullopt;
    const bool message = call_.kind == calls::CollectiveKind::send;
    bool arrived = true;
    for (int i = 0; i < count_; ++i) {
      const auto theirs = records_[static_cast<std::size_t>(message ? 1 : i)].read();
      if (theirs && *theirs != call_)
        return message ? distx::detail::difference(header_of(call_), header_of(*theirs), first_, false)
                       : calls::difference(call_, *theirs, i);
      if (!theirs && complete) return "rank " + std::to_string(first_ + i) + " makes another call than this rank";
      arrived = arrived && theirs;
    }
    if (arrived) close();
    return std::nullopt;
  }

 private:
  [[nodiscard]] static distx::detail::MessageHeader header_of(const calls::Fingerprint& f) noexcept {
    return {f.count, f.counts, f.element_bytes, static_cast<std::uint32_t>(f.type)};
  }
  void begin(const calls::Fingerprint& call, int first, int count) noexcept {
    call_ = call;
    first_ = first;
    count_ = count;
    open_.store(true, std::memory_order_release);
  }

  cuda::PinnedBuffer<CallRecord> records_;  ///< of all ranks; of messages, the one sent and the one received
  calls::Fingerprint call_;                 ///< this rank's
  int first_ = 0, count_ = 0;               ///< the ranks whose descriptions are compared
  std::atomic<bool> open_{false};
};

}  // namespace distx::inline DISTX_ABI::nccl::detail
