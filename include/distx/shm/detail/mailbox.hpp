// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/shared_memory/shared_region.hpp"
#include "distx/shm/detail/message_buffers.hpp"
#include "distx/shm/detail/slots.hpp"

namespace distx::inline DISTX_ABI::detail::shm {

/// Where the data of a message is.
struct CellData {
  enum class DataPlace : std::uint32_t { in_cell, in_buffer, in_shared_memory, in_process };
  DataPlace place = DataPlace::in_cell;
  SegmentName buffer;
  SharedAddress shared;
  std::byte* address = nullptr;  ///< in the process of the first side

  /// Returns whether the second side copies to or from the memory of the first, which need not copy.
  [[nodiscard]] bool is_direct() const noexcept { return place >= DataPlace::in_shared_memory; }
};

/// A message that has not been matched, or whose first side has not yet observed the match.
///
/// The first side takes a cell and says where the data is: in the cell if there is little, in its own memory if the
/// second side can access it, otherwise in a buffer. The second side copies to or from there. The first side then frees
/// the cell.
struct Cell {
  enum CellState : std::uint32_t { free, send_waits, receive_waits, met };
  enum Outcome : std::uint32_t { open, done, mismatch, failed };
  static constexpr std::size_t small_bytes = Slot::most_bytes;

  std::atomic<std::uint32_t> state{free};    // taken and matched under the mailbox's lock
  std::atomic<std::uint32_t> shown{0};       // the first side is a sender and has stored its data
  std::atomic<std::uint32_t> outcome{open};  // set by the second side, when it is done with the cell
  std::int32_t from = 0;
  std::int32_t tag = 0;
  std::uint64_t order = 0;
  MessageHeader header, other;  // of the first side; of the second, if they do not match
  CellData data;
  alignas(alignment_bytes) std::byte small[small_bytes];
};

/// The messages to one rank, sent or awaited. Messages with the same sender and tag match in order.
struct SegmentMailbox {
  static constexpr std::size_t capacity = 256;

  std::atomic<std::uint32_t> holder{0};  // the rank that holds the lock, plus one
  std::uint32_t in_use = 0;              // cells from this index on have never been used
  std::uint64_t next_order = 0;
  std::atomic<std::uint32_t> awaited{0};                   // receives in cells; changed under the lock
  alignas(Cell) std::byte cells[capacity * sizeof(Cell)];  // constructed when first used: most never are

  /// @pre the cell has been used
  [[nodiscard]] Cell& cell(std::size_t i) noexcept {
    return *std::launder(reinterpret_cast<Cell*>(cells + i * sizeof(Cell)));
  }
  [[nodiscard]] std::size_t index_of(const Cell& c) const noexcept {
    return static_cast<std::size_t>(reinterpret_cast<const std::byte*>(&c) - cells) / sizeof(Cell);
  }

  /// Returns the oldest message that matches `mine`, or null. @pre the lock is held
  Cell* counterpart(const MessageRequest& mine) noexcept {
    return oldest(mine.sends ? Cell::receive_waits : Cell::send_waits, mine.from, mine.tag);
  }
  /// Returns the oldest message in that state, or null. @pre the lock is held
  Cell* oldest(Cell::CellState wanted, int from, int tag) noexcept {
    Cell* found = nullptr;
    for (std::uint32_t i = 0; i < in_use; ++i) {
      Cell& other = cell(i);
      if (other.state.load(std::memory_order_acquire) != wanted || other.from != from || other.tag != tag) continue;
      if (found == nullptr || other.order < found->order) found = &other;
    }
    return found;
  }
  /// Matches a cell. @pre the lock is held
  void match(Cell& c) noexcept {
    if (c.state.load(std::memory_order_relaxed) == Cell::receive_waits) awaits(-1);
    c.state.store(Cell::met, std::memory_order_release);
  }
  void awaits(int more) noexcept {
    awaited.store(awaited.load(std::memory_order_relaxed) + static_cast<std::uint32_t>(more),
                  std::memory_order_release);
  }
  /// Returns a cell for the first side of a message, or null if all are in use. @pre the lock is held
  Cell* take(const MessageRequest& mine, const CellData& data) noexcept {
    std::uint32_t i = 0;
    while (i < in_use && cell(i).state.load(std::memory_order_acquire) != Cell::free) ++i;
    if (i == capacity) return nullptr;
    if (i == in_use) new (cells + in_use++ * sizeof(Cell)) Cell;
    Cell& taken = cell(i);
    taken.shown.store(0, std::memory_order_relaxed);
    taken.outcome.store(Cell::open, std::memory_order_relaxed);
    taken.from = mine.from;
    taken.tag = mine.tag;
    taken.order = next_order++;
    taken.header = mine.header;
    taken.data = data;
    if (!mine.sends) awaits(1);
    taken.state.store(mine.sends ? Cell::send_waits : Cell::receive_waits, std::memory_order_release);
    return &taken;
  }
};

/// Holds a mailbox's lock, always briefly; not held if the rank that held it has died.
class MailboxLock {
 public:
  MailboxLock(SharedRegion& region, SegmentMailbox& box, int rank) noexcept : box_(box) {
    SharedRegion::LivenessProbe look;
    const auto take = [&] {
      holder_ = 0;
      return box.holder.compare_exchange_strong(holder_, static_cast<std::uint32_t>(rank) + 1,
                                                std::memory_order_acquire);
    };
    const auto dead = [&] { return holder_ != 0 && look.died(region, static_cast<int>(holder_) - 1); };
    held_ = wait_until(no_timeout, take, dead) == WaitEnd::ready;
  }
  /// Takes the lock if it is free: for polls, which must return soon.
  MailboxLock(SegmentMailbox& box, int rank, std::try_to_lock_t) noexcept
      : box_(box),
        held_(box.holder.compare_exchange_strong(holder_, static_cast<std::uint32_t>(rank) + 1,
                                                 std::memory_order_acquire)) {}
  MailboxLock(const MailboxLock&) = delete;
  MailboxLock& operator=(const MailboxLock&) = delete;
  ~MailboxLock() {
    if (held_) box_.holder.store(0, std::memory_order_release);
  }
  [[nodiscard]] bool held() const noexcept { return held_; }
  /// Returns the rank that died while it held the lock. @pre !held()
  [[nodiscard]] int dead() const noexcept { return static_cast<int>(holder_) - 1; }

 private:
  SegmentMailbox& box_;
  std::uint32_t holder_ = 0;
  bool held_ = false;
};

}  // namespace distx::inline DISTX_ABI::detail::shm
