// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/shm/detail/futex.hpp"
#include "distx/shm/detail/mailbox.hpp"
#include "distx/shm/detail/other_memories.hpp"
#include "distx/shm/detail/shared_table.hpp"

namespace distx::inline DISTX_ABI::detail::shm {

/// A region of ranks that share segments: each rank has one object, on a control segment that all ranks map.
class SegmentRegion final : public SharedRegion {
 public:
  static Extent extent_for(int size) noexcept {
    const auto ranks = static_cast<std::size_t>(size);
    return {.inline_bytes = inline_bytes,
            .staging_bytes = std::max(least_staging_bytes, ranks * alignment_bytes),
            .mailbox_bytes = round_up_to_lines(sizeof(SegmentMailbox)),
            .pair_bytes = size <= most_with_slots ? sizeof(Slots) : 0};
  }
  [[nodiscard]] static RegionToken make(int size, const Timeout&, std::shared_ptr<void>& keep) {
    auto made = std::make_shared<SharedSegment::Made>(make_control(size));
    keep = made;
    return token_of(made->name);
  }
  [[nodiscard]] static std::shared_ptr<SharedRegion> open(const RegionToken& token, int rank, int size,
                                                          const Timeout& deadline) {
    return std::make_shared<SegmentRegion>(SharedSegment::find(name_of(token)), rank, size, deadline);
  }
  [[nodiscard]] RegionToken make_sibling(int size, std::shared_ptr<void>& keep) override {
    return make(size, deadline(), keep);
  }
  [[nodiscard]] std::shared_ptr<SharedRegion> open_sibling(const RegionToken& token, int rank, int size) override {
    return open(token, rank, size, deadline());
  }
  [[nodiscard]] std::unique_ptr<RegionAllocation> new_allocation(const RankOf& self) override;
  [[nodiscard]] std::unique_ptr<RegionAllocation> new_adoption(const RankOf& self, Span<std::byte> memory) override;
  [[nodiscard]] RegionToken make_common(std::size_t bytes, const ErrorContext& context,
                                        std::shared_ptr<void>& keep) override;
  [[nodiscard]] CommonMemory<Host> open_common(const RegionToken& token, std::size_t bytes,
                                               const std::vector<ByteRange>& own, const ErrorContext& context) override;

  /// Returns a control segment that other ranks can find.
  static SharedSegment::Made make_control(int size) {
    const Extent extent = extent_for(size);
    SharedSegment::Made made = SharedSegment::make(SharedLayout::bytes_for(size, extent));
    SharedLayout control(made.segment->data(), size, extent);
    control.construct();
    for (int rank = 0; rank < size; ++rank) {
      new (control.mailbox(rank)) SegmentMailbox;
      for (int other = 0; other < size; ++other) {
        new (&control.reach(rank, other)) Reach(Access::unknown);
        if (extent.pair_bytes != 0) new (control.pair(rank, other)) Slots;
      }
    }
    return made;
  }

  SegmentRegion(std::shared_ptr<SharedSegment> control, int rank, int size, const Timeout& deadline)
      : SharedRegion({control->data(), size, extent_for(size)}, deadline, across_processes),
        segment_(std::move(control)),
        rank_(rank),
        others_(static_cast<std::size_t>(size)) {
    RankBlock& mine = this->control().rank(rank);
    mine.process = process_;
    mine.process_began = process_began_;
    mine.probe = &process_began_;
    for (const auto queue : {CallQueue::blocking, CallQueue::started})
      mine.written[static_cast<std::size_t>(queue)] = memories_.written(queue);
  }

  [[nodiscard]] SharedAddress address_of(const void* memory, std::size_t bytes) noexcept override {
    return shared.address_of(memory, bytes);
  }
  [[nodiscard]] std::byte* at(const SharedAddress& place) noexcept override { return shared.at(place); }
  [[nodiscard]] bool reads_all() const noexcept override { return memories_.reads_all(); }
  void try_reading_all() noexcept override { memories_.try_reading_all(); }
  void read(int rank, std::byte* to, const std::byte* address, std::size_t bytes,
            const ErrorContext& context) override {
    if (is_in_process(rank)) return copy(to, address, bytes);
    if (!memories_.read(rank, to, address, bytes)) throw_unreached("read", rank, context);
  }
  void write(int rank, CallQueue queue, std::uint64_t call, std::byte* address, const std::byte* from,
             std::size_t bytes, const ErrorContext& context) override {
    if (is_in_process(rank)) return copy(address, from, bytes);
    const OtherMemories::WriteGuard guard(control().channel(rank_, queue), rank, call);
    if (revoked()) throw_revoked(context);  // the rank may have released the memory
    if (!memories_.write(rank, queue, address, from, bytes, call)) throw_unreached("copy to", rank, context);
  }
  [[nodiscard]] bool died(int rank) noexcept override {
    const RankBlock& other = control().rank(rank);
    return other.process != process_ && posix::has_ended(other.process, other.process_began);
  }
  [[nodiscard]] bool detach_from(int rank) noexcept override { return !is_in_process(rank) && shared.detach(); }
  /// Returns whether a rank is in this process.
  [[nodiscard]] bool is_in_process(int rank) const noexcept { return control().rank(rank).process == process_; }

  void post(const std::shared_ptr<MessageRequest>& mine, const ErrorContext& context) override {
    if (mine->sends ? fill_slot(*mine) : take_slot(*mine)) return;
    SegmentMailbox& box = mailbox(*mine);
    Slots& slots = slots_of(*mine);
    Slots::FoundSlot taken;
    std::shared_ptr<MessageBuffer> buffer;
    CellData data = direct_data(*mine);
    Cell* cell = nullptr;
    bool second = false, needs_buffer = false, is_full = false;
    if (in_cells_.size() == in_cells_.capacity()) {
      advance_all();
      in_cells_.reserve(2 * in_cells_.size() + 16);  // reserves before a cell is taken: nothing may throw after it
    }
    if (!mine->sends && mine->blocking && data.is_direct()) look_for_sender(*mine, box);
    const auto attempt = [&] {
      needs_buffer = false;
      if (is_full) advance_all();  // frees the cells of completed messages that were not polled
      const MailboxLock lock(*this, box, rank_);
      if (!lock.held()) throw_stopped(lock.dead(), context);
      pass_on(box, slots, *mine);  // messages in slots are older than those in cells
      // A message that was stored since then belongs to an older receive, if there is any.
      if (!mine->sends && box.oldest(Cell::receive_waits, mine->from, mine->tag) == nullptr &&
          (taken = slots.take(mine->tag)))
        return true;
      cell = box.counterpart(*mine);
      second = cell != nullptr;
      if (second) {
        box.match(*cell);
        return true;
      }
      needs_buffer = data.place == CellData::DataPlace::in_buffer && buffer == nullptr;
      if (needs_buffer) return true;
      cell = box.take(*mine, data);
      is_full = cell == nullptr;
      return !is_full;
    };
    const auto full = [&] {
      return "timed out after " + deadline().to_string() + ": the mailbox of rank " + std::to_string(mine->to) +
             " is full (" + std::to_string(SegmentMailbox::capacity) + " unreceived messages)";
    };
    do {
      wait(mine->sends ? mine->to : mine->from, context, attempt, full);
      if (!needs_buffer || taken) continue;
      buffer = buffers_.take(mine->bytes);
      data.buffer = buffer->name;
    } while (cell == nullptr && !taken);
    if (taken) return receive_slot(*mine, taken);
    if (second) return meet(*mine, *cell, context);
    mine->queued = Queued::in_cell;
    mine->cell = box.index_of(*cell);
    mine->buffer = buffer;
    if (mine->sends) ++others_[static_cast<std::size_t>(mine->to)].in_flight;
    if (!std::exchange(mine->listed, true)) in_cells_.push_back(mine);
    if (!mine->sends || data.is_direct()) return;
    copy(buffer == nullptr ? cell->small : buffer->segment->data(), mine->source, mine->bytes);
    cell->shown.store(1, std::memory_order_release);
  }

  [[nodiscard]] bool advance(MessageRequest& mine) noexcept override {
    if (mine.done()) return true;
    if (mine.queued == Queued::no) return false;
    Slots& slots = slots_of(mine);
    if (mine.queued == Queued::in_slot) return advance_slot(mine, slots);
    SegmentMailbox& box = mailbox(mine);
    Cell& cell = box.cell(mine.cell);
    auto outcome = cell.outcome.load(std::memory_order_acquire);
    if (outcome == Cell::open && !mine.sends && slots.oldest(mine.tag)) {
      const MailboxLock lock(box, rank_, std::try_to_lock);
      if (lock.held()) pass_on(box, slots, mine);
      outcome = cell.outcome.load(std::memory_order_acquire);
    }
    if (outcome == Cell::open) return false;
    std::exception_ptr error;
    if (outcome == Cell::failed) {
      error = std::make_exception_ptr(MemoryError("the other side of the message failed to map the data"));
    } else if (outcome == Cell::mismatch) {
      mine.mismatch = true;
      mine.other = cell.other;
    } else if (!mine.sends && !cell.data.is_direct()) {
      const auto* const buffer = static_cast<const MessageBuffer*>(mine.buffer.get());
      copy(mine.target, buffer == nullptr ? cell.small : buffer->segment->data(), mine.bytes);
    }
    give_back(mine, cell);
    mine.finish(error);
    return true;
  }

  [[nodiscard]] bool complete_locally(MessageRequest& mine) noexcept override {
    if (mine.queued != Queued::in_slot) return false;
    // An older receive of the other rank, posted before its exchange, has either taken the message, as that rank then
    // has said in its own, or is counted in `awaited`. One that it has matched since it sent its own gets the message
    // in order; if the two differ, only that rank throws here.
    if (!slots_with(mine.to).is_open(mine.cell)) return false;
    if (mailbox(mine).awaited.load(std::memory_order_acquire) != 0) return false;
    leave_slot(mine, false);
    mine.finish_here();
    return true;
  }

  bool withdraw(MessageRequest& mine) noexcept override {
    if (mine.done()) return false;
    if (mine.queued == Queued::in_slot) {
      if (!slots_of(mine).slots[mine.cell].leave({mine.slot_word}, SlotWord::free)) return false;
      leave_slot(mine, true);
      return true;
    }
    SegmentMailbox& box = mailbox(mine);
    Cell& cell = box.cell(mine.cell);
    const MailboxLock lock(*this, box, rank_);
    // The other rank may have completed its send and left; while the lock was not free, no poll has passed it on.
    if (lock.held() && !mine.sends) pass_on(box, slots_of(mine), mine);
    if (lock.held() && cell.state.load(std::memory_order_acquire) == Cell::met) return false;
    if (!mine.sends) box.awaits(-1);
    give_back(mine, cell);
    return true;
  }

  /// The memory allocated by the communicator.
  SharedTable shared;

 private:
  static constexpr std::size_t inline_bytes = 4096;
  static constexpr std::size_t least_staging_bytes = std::size_t{256} << 10;
  /// Returns the size from which on messages are copied directly between processes; smaller ones take less time through
  /// a buffer, which caches hold.
  static constexpr std::size_t least_direct_bytes(Access access) noexcept {
    return access == Access::quick ? least_tried_bytes : access == Access::granted ? std::size_t{1} << 20 : SIZE_MAX;
  }
  /// From this size on, a message is a reason to try whether they can be.
  static constexpr std::size_t least_tried_bytes = std::size_t{16} << 10;
  /// On more ranks the slots, whose number grows with the square, would take too much memory.
  static constexpr int most_with_slots = 64;
  /// The state of the messages to and from another rank.
  struct Other {
    std::uint32_t in_flight = 0;  ///< to it
    SlotRecord slots;
  };
  using Queued = MessageRequest::Queued;

  SegmentMailbox& mailbox(const MessageRequest& e) const noexcept {
    return *std::launder(reinterpret_cast<SegmentMailbox*>(control().mailbox(e.to)));
  }
  static void copy(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
    if (bytes != 0) std::memmove(to, from, bytes);
  }
  void give_back(MessageRequest& mine, Cell& cell) noexcept {
    if (mine.sends) --others_[static_cast<std::size_t>(mine.to)].in_flight;
    mine.buffer = nullptr;
    mine.queued = Queued::no;
    cell.state.store(Cell::free, std::memory_order_release);
  }

  /// @name Messages in the slots of a pair of ranks
  /// @{
  Slots& slots_of(const MessageRequest& e) noexcept {
    if (!has_slots_) return no_slots_;
    return *std::launder(reinterpret_cast<Slots*>(control().pair(e.from, e.to)));
  }
  SlotRecord& slots_with(int other) noexcept { return others_[static_cast<std::size_t>(other)].slots; }
  /// Stores a message; returns false if it must be matched in order with others.
  [[nodiscard]] bool fill_slot(MessageRequest& mine) noexcept {
    Other& other = others_[static_cast<std::size_t>(mine.to)];
    if (!has_slots_ || mine.bytes > Slot::most_bytes || mine.to == mine.from || other.in_flight != 0) return false;
    if (mailbox(mine).awaited.load(std::memory_order_acquire) != 0) return false;
    Slots& slots = slots_of(mine);
    Slot* const slot = other.slots.unused(slots);
    if (slot == nullptr) return false;
    slot->header = mine.header;
    copy(slot->data(mine.bytes), mine.source, mine.bytes);
    ++other.in_flight;
    mine.queued = Queued::in_slot;
    mine.cell = slots.index_of(*slot);
    mine.slot_word = other.slots.send(slots, *slot, mine.tag, mine.exchanges, mine.bytes).bits;
    // The polls that follow would otherwise take the other rank's line before this message is out.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return true;
  }
  /// Receives the message in a slot, if this rank awaits no older one.
  [[nodiscard]] bool take_slot(MessageRequest& mine) noexcept {
    if (mine.bytes > Slot::most_bytes || mailbox(mine).awaited.load(std::memory_order_acquire) != 0) return false;
    Slots& slots = slots_of(mine);
    const Slot& next = slots.slots[slots_with(mine.from).expected()];
    const int polls = mine.blocking ? backoff.spins() : 0;
    for (int poll = 0; poll < polls && next.word().state() != SlotWord::full;) ++poll;
    next.fetch(mine.bytes);
    const Slots::FoundSlot taken = slots.take(mine.tag);
    if (taken) receive_slot(mine, taken);
    return static_cast<bool>(taken);
  }
  /// @pre this rank has taken the message
  void receive_slot(MessageRequest& mine, const Slots::FoundSlot& taken) noexcept {
    Slot& slot = *taken.slot;
    mine.mismatch = slot.header != mine.header;
    if (mine.mismatch) {
      mine.other = slot.header;
      slot.other = mine.header;
    } else {
      copy(mine.target, slot.data(mine.bytes), mine.bytes);
    }
    mine.exchanged = taken.word.exchanged();
    slots_with(mine.from).receive(slots_of(mine), taken);
    slot.settle(!mine.mismatch);
    ring_for_message(mine.from);
    mine.finish_here();
  }
  /// Moves each message in a slot to the cell of the oldest receive that awaits it, if there is one: the two were
  /// posted at the same time. Called by either rank. @pre the lock is held
  void pass_on(SegmentMailbox& box, Slots& slots, const MessageRequest& pair) noexcept {
    const auto awaiting = [&](SlotWord word) { return box.oldest(Cell::receive_waits, pair.from, word.tag()); };
    while (const Slots::FoundSlot found = slots.oldest(
               [&](SlotWord word) { return word.state() == SlotWord::full && awaiting(word) != nullptr; })) {
      if (!found.slot->leave(found.word, SlotWord::taken)) return;
      Slot& slot = *found.slot;
      Cell& cell = *awaiting(found.word);
      box.match(cell);
      const bool fit = slot.header == cell.header;
      if (fit) {
        copy(cell.small, slot.data(slot.header.bytes()), slot.header.bytes());
      } else {
        cell.other = slot.header;
        slot.other = cell.header;
      }
      if (pair.to == rank_)
        slots_with(pair.from).receive(slots, found);
      else
        slots_with(pair.to).close(slots.index_of(slot));
      cell.outcome.store(fit ? Cell::done : Cell::mismatch, std::memory_order_seq_cst);
      slot.settle(fit);
      ring_for_message(pair.from);
      ring_for_message(pair.to);
    }
  }
  [[nodiscard]] bool advance_slot(MessageRequest& mine, Slots& slots) noexcept {
    // A receive that was posted at the same time waits in a cell; its rank may be doing something else.
    SegmentMailbox& box = mailbox(mine);
    Slot& slot = slots.slots[mine.cell];
    if (slot.word().state() == SlotWord::full && mine.polls++ % 16 == 0 &&
        box.awaited.load(std::memory_order_acquire) != 0) {
      const MailboxLock lock(box, rank_, std::try_to_lock);
      if (lock.held()) pass_on(box, slots, mine);
    }
    const SlotWord::SlotState state = slot.word().state();
    if (state != SlotWord::done && state != SlotWord::mismatch) return false;
    mine.mismatch = state == SlotWord::mismatch;
    mine.other = slot.other;
    leave_slot(mine, true);
    mine.finish_here();
    return true;
  }
  /// @param settled  whether the other rank needs the message no more
  void leave_slot(MessageRequest& mine, bool settled) noexcept {
    Other& other = others_[static_cast<std::size_t>(mine.to)];
    if (settled) other.slots.close(mine.cell);
    mine.queued = Queued::no;
    --other.in_flight;
  }
  /// @}

  /// Polls for the sender of a large message for a moment, before the receive is posted: then this rank copies it. In
  /// an exchange each rank thus copies what it receives; of a receive that is found posted, the sender would.
  void look_for_sender(const MessageRequest& mine, SegmentMailbox& box) noexcept {
    const auto is_there = [&] {
      const MailboxLock lock(box, rank_, std::try_to_lock);
      return lock.held() && box.counterpart(mine) != nullptr;
    };
    (void)wait_until(std::chrono::milliseconds(1), is_there, [this] { return revoked(); });
  }

  void advance_all() noexcept {
    std::erase_if(in_cells_, [this](const std::weak_ptr<MessageRequest>& weak) {
      const auto envelope = weak.lock();
      if (envelope == nullptr) return true;
      envelope->listed = envelope->queued != Queued::no && !advance(*envelope);
      return !envelope->listed;
    });
  }

  /// Returns where the first side of a message has its data; for a buffer, the buffer is still to be made.
  [[nodiscard]] CellData direct_data(const MessageRequest& mine) noexcept {
    CellData data;
    if (mine.bytes <= Cell::small_bytes) return data;
    std::byte* const memory = mine.sends ? const_cast<std::byte*>(mine.source) : mine.target;
    const int other = mine.sends ? mine.to : mine.from;
    data.shared = shared.address_of(memory, mine.bytes);
    data.address = memory;
    const bool in_reach =
        is_in_process(other) ||
        mine.bytes >= least_direct_bytes(control().reach(other, rank_).load(std::memory_order_relaxed));
    data.place = data.shared.segment != 0 ? CellData::DataPlace::in_shared_memory
                 : in_reach               ? CellData::DataPlace::in_process
                                          : CellData::DataPlace::in_buffer;
    return data;
  }
  /// Throws if a rank whose memory could not be accessed has died, or the communicator was revoked. The memory of a
  /// process that is killed goes before the process.
  void check_alive(int other, const ErrorContext& context) {
    const auto gone = [&] { return revoked() || died(other); };
    if (wait_until(std::chrono::seconds(1), gone, [] { return false; }) == WaitEnd::ready)
      throw_stopped(other, context);
  }
  /// Copies the data of a message that this rank has matched, as its second side.
  void transfer(const MessageRequest& mine, Cell& cell, const ErrorContext& context) {
    const CellData& data = cell.data;
    const int first = mine.sends ? mine.to : mine.from;
    std::byte* room = cell.small;
    std::shared_ptr<SharedSegment> buffer;
    if (data.place == CellData::DataPlace::in_process) {
      if (!is_in_process(first)) return reach_into(mine, data.address, first, context);
      room = data.address;
    } else if (data.place == CellData::DataPlace::in_shared_memory) {
      room = shared.at(data.shared);
      if (room == nullptr) throw MemoryError("the memory of the message's other side is not mapped", context);
    } else if (data.place == CellData::DataPlace::in_buffer) {
      try {
        buffer = buffers_.find(data.buffer);
      } catch (const MemoryError&) {
        check_alive(first, context);
        throw;
      }
      room = buffer->data();
      if (mine.bytes >= least_tried_bytes) (void)memories_.try_reach(first);
    }
    if (mine.sends) return copy(room, mine.source, mine.bytes);
    if (!data.is_direct())
      wait(
          mine.from, context, [&] { return cell.shown.load(std::memory_order_acquire) != 0; },
          [&] {
            return "timed out after " + deadline().to_string() + ": rank " + std::to_string(mine.from) +
                   " did not complete its message";
          });
    copy(mine.target, room, mine.bytes);
  }
  /// Copies to or from the memory of the first side's process, which waits for that.
  void reach_into(const MessageRequest& mine, std::byte* address, int first, const ErrorContext& context) {
    const bool moved = mine.sends ? memories_.write_if(first, address, mine.source, mine.bytes)
                                  : memories_.read_if(first, mine.target, address, mine.bytes);
    if (!moved) throw_unreached(mine.sends ? "copy to" : "read", first, context);
  }
  /// Throws for the system call that has failed.
  [[noreturn]] void throw_unreached(const std::string& what, int other, const ErrorContext& context) {
    const int code = errno;
    check_alive(other, context);
    throw MemoryError("cannot " + what + " the memory of rank " + std::to_string(other) + ": " + std::strerror(code),
                      context, code);
  }
  /// Gives the cell back to the first side, which waits for that.
  void settle(const MessageRequest& mine, Cell& cell, Cell::Outcome outcome) noexcept {
    cell.outcome.store(outcome, std::memory_order_seq_cst);
    ring_for_message(mine.sends ? mine.to : mine.from);
  }
  /// Completes the second side; `cell` belongs to the first side, which waits for the outcome.
  void meet(MessageRequest& mine, Cell& cell, const ErrorContext& context) {
    if (cell.header != mine.header) {
      mine.mismatch = true;
      mine.other = cell.header;
      cell.other = mine.header;
      settle(mine, cell, Cell::mismatch);
      return mine.finish_here();
    }
    try {
      transfer(mine, cell, context);
    } catch (...) {
      settle(mine, cell, Cell::failed);
      throw;
    }
    settle(mine, cell, Cell::done);
    mine.finish_here();
  }

  std::shared_ptr<SharedSegment> segment_;
  int rank_;
  std::int64_t process_ = ::getpid();
  std::uint64_t process_began_ = posix::process_state(process_).began;
  const bool has_slots_ = size() <= most_with_slots;
  Slots no_slots_{};           // remain free
  std::vector<Other> others_;  // by their ranks
  OtherMemories memories_{control(), rank_};
  MessageBufferCache buffers_;
  std::vector<std::weak_ptr<MessageRequest>> in_cells_;  // messages of this rank
};

}  // namespace distx::inline DISTX_ABI::detail::shm
