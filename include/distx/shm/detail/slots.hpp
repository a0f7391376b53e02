// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "distx/comm/runtime/message_header.hpp"
#include "distx/memory/buffer.hpp"

namespace distx::inline DISTX_ABI::detail::shm {

/// The state of a slot and what the other rank needs to match the message in it.
struct SlotWord {
  enum SlotState : std::uint64_t { free, full, taken, done, mismatch };

  std::uint64_t bits = free;

  /// @param order  of the message among those in the slots of a pair of ranks, modulo 2^24
  /// @param exchanged  in the same call the sender awaits a message with the same tag and header from the receiver
  [[nodiscard]] static constexpr SlotWord full_with(int tag, std::uint32_t order, bool exchanged) noexcept {
    return {std::uint64_t{static_cast<std::uint32_t>(tag)} << 32 | std::uint64_t{order % orders} << 8 |
            (exchanged ? std::uint64_t{exchanged_bit} : 0) | full};
  }
  [[nodiscard]] constexpr SlotState state() const noexcept { return static_cast<SlotState>(bits % exchanged_bit); }
  [[nodiscard]] constexpr bool exchanged() const noexcept { return (bits & exchanged_bit) != 0; }
  [[nodiscard]] constexpr std::uint32_t order() const noexcept {
    return static_cast<std::uint32_t>(bits >> 8) % orders;
  }
  /// Returns a number other than 0 that no other message of the pair has for a long time.
  [[nodiscard]] constexpr std::uint32_t stamp() const noexcept { return order() + 1; }
  [[nodiscard]] constexpr int tag() const noexcept { return static_cast<int>(bits >> 32); }
  [[nodiscard]] constexpr bool holds(int wanted) const noexcept { return state() == full && tag() == wanted; }
  /// Returns whether a message was stored before another one of the same pair.
  [[nodiscard]] constexpr bool is_before(SlotWord other) const noexcept {
    return (order() - other.order()) % orders >= orders / 2;
  }

 private:
  static constexpr unsigned exchanged_bit = 0x80;
  static constexpr std::uint32_t orders = 1u << 24;
};

/// For each slot, the stamp of a message, or 0.
using Stamps = std::array<std::uint32_t, 2>;

/// A place for a small message from one rank to another, which the receiver takes without a lock.
struct alignas(alignment_bytes) Slot {
  static constexpr std::size_t most_bytes = 1024;

  std::atomic<std::uint64_t> bits{SlotWord::free};
  MessageHeader header;
  Stamps settled{};     // of the last message in each slot that the sender of this message has received
  std::byte tiny[24];   // in the line of the state
  MessageHeader other;  // of the receiver, if they do not match
  alignas(alignment_bytes) std::byte small[most_bytes];

  [[nodiscard]] std::byte* data(std::size_t bytes) noexcept { return bytes <= sizeof tiny ? tiny : small; }
  [[nodiscard]] SlotWord word() const noexcept { return {bits.load(std::memory_order_acquire)}; }
  /// Takes a message out of the state `full`; returns false if the other rank has done so.
  [[nodiscard]] bool leave(SlotWord full, SlotWord::SlotState next) noexcept {
    return bits.compare_exchange_strong(full.bits, next, std::memory_order_acquire);
  }
  /// Releases the message, for the receiver. @param fits  whether the headers are equal
  void settle(bool fits) noexcept { bits.store(fits ? SlotWord::done : SlotWord::mismatch, std::memory_order_seq_cst); }
  /// Fetches the lines of the data, for a receiver while it takes the message.
  void fetch(std::size_t bytes) const noexcept {
    if (bytes <= sizeof tiny) return;
    for (std::size_t offset = 0; offset < bytes; offset += alignment_bytes) __builtin_prefetch(small + offset);
  }
  /// Takes the lines of the data from the receiver. @pre the slot is the sender's
  void take_lines(std::size_t bytes) noexcept {
    if (bytes <= sizeof tiny) return;
    for (std::size_t offset = 0; offset < bytes; offset += alignment_bytes) small[offset] = {};
  }
};

/// The slots of the messages from one rank to another, which the sender uses in turn.
///
/// The sender stores a message if it has no other one to that rank in flight and none is awaited, so it is older than
/// the sender's cells. The receiver takes it, or, under the mailbox's lock, one of the two matches it with a receive
/// that was posted at the same time.
///
/// In an exchange, a rank that has received the other one's message knows that its own is awaited. It does not wait for
/// the answer, which would cost as much as the exchange, and stores its next message in the other slot.
struct Slots {
  std::array<Slot, 2> slots;

  [[nodiscard]] std::size_t index_of(const Slot& slot) const noexcept {
    return static_cast<std::size_t>(&slot - slots.data());
  }

  /// A message in a slot.
  struct FoundSlot {
    Slot* slot = nullptr;
    SlotWord word;

    explicit operator bool() const noexcept { return slot != nullptr; }
  };
  /// Returns the oldest message for which `wanted(word)` is true.
  template <class Wanted>
  [[nodiscard]] FoundSlot oldest(Wanted&& wanted) noexcept {
    FoundSlot first{&slots[0], slots[0].word()};
    const FoundSlot second{&slots[1], slots[1].word()};
    if (!wanted(second.word)) return wanted(first.word) ? first : FoundSlot();
    if (!wanted(first.word)) first.word = slots[0].word();  // an older one may have been stored between the two reads
    return wanted(first.word) && first.word.is_before(second.word) ? first : second;
  }
  [[nodiscard]] FoundSlot oldest(int tag) noexcept {
    return oldest([tag](SlotWord word) { return word.holds(tag); });
  }
  /// Takes the oldest message with a tag, if there is one.
  [[nodiscard]] FoundSlot take(int tag) noexcept {
    const FoundSlot found = oldest(tag);
    return found && found.slot->leave(found.word, SlotWord::taken) ? found : FoundSlot();
  }
};

/// One rank's record of the slots that it shares with another one.
class SlotRecord {
 public:
  /// Returns a slot for the next message to the other rank, or null. A slot that the other one is known to have
  /// emptied is not read.
  [[nodiscard]] Slot* unused(Slots& outgoing) noexcept {
    for (const std::size_t i : {1 - last_sent_, last_sent_}) {
      const auto state = open_[i] == 0 ? SlotWord::free : outgoing.slots[i].word().state();
      if (state == SlotWord::full || state == SlotWord::taken) continue;
      open_[i] = 0;
      return &outgoing.slots[i];
    }
    return nullptr;
  }
  /// Stores a message whose header and data are in the slot. @return its word
  SlotWord send(Slots& outgoing, Slot& slot, int tag, bool exchanged, std::size_t bytes) noexcept {
    const SlotWord word = SlotWord::full_with(tag, order_++, exchanged);
    last_sent_ = outgoing.index_of(slot);
    open_[last_sent_] = word.stamp();
    slot.settled = received_;
    slot.bits.store(word.bits, std::memory_order_release);
    if (!exchanged && open_[1 - last_sent_] == 0) outgoing.slots[1 - last_sent_].take_lines(bytes);
    return word;
  }
  /// Returns whether the other rank is not known to have received this rank's last message in a slot.
  [[nodiscard]] bool is_open(std::size_t slot) const noexcept { return open_[slot] != 0; }
  /// Notes that the other rank needs the message in a slot no more.
  void close(std::size_t slot) noexcept { open_[slot] = 0; }

  /// Returns the index of the slot where the next message from the other rank is expected.
  [[nodiscard]] std::size_t expected() const noexcept { return expected_; }
  /// Notes that this rank has received a message. @pre it has taken it
  void receive(const Slots& incoming, const Slots::FoundSlot& taken) noexcept {
    const std::size_t i = incoming.index_of(*taken.slot);
    received_[i] = taken.word.stamp();
    expected_ = 1 - i;
    for (std::size_t mine = 0; mine < open_.size(); ++mine)
      if (taken.slot->settled[mine] == open_[mine]) open_[mine] = 0;
  }

 private:
  std::uint32_t order_ = 0;
  std::size_t last_sent_ = 1;
  std::size_t expected_ = 0;
  Stamps open_{};      ///< of this rank's messages that the other one is not known to have received
  Stamps received_{};  ///< of the last message from each slot
};

}  // namespace distx::inline DISTX_ABI::detail::shm
