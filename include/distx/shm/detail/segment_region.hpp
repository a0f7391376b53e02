// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/shm/detail/futex.hpp"
#include "distx/shm/detail/mailbox.hpp"
#include "distx/shm/detail/other_process.hpp"
#include "distx/shm/detail/shared_table.hpp"

namespace distx::detail::shm {

/// A region of ranks that share segments: each rank has one object, on a control segment that all ranks map.
class SegmentRegion final : public shared_memory::SharedRegion {
 public:
  static shared_memory::Extent extent_for(int size) noexcept {
    const auto ranks = static_cast<std::size_t>(size);
    return {.inline_bytes = inline_bytes,
            .staging_bytes = std::max(least_staging_bytes, ranks * alignment_bytes),
            .mailbox_bytes = detail::round_up_to_lines(sizeof(Mailbox))};
  }
  [[nodiscard]] static shared_memory::RegionToken make(int size, const Timeout&, std::shared_ptr<void>& keep) {
    auto made = std::make_shared<Segment::Made>(make_control(size));
    keep = made;
    return token_of(made->name);
  }
  [[nodiscard]] static std::shared_ptr<shared_memory::SharedRegion> open(const shared_memory::RegionToken& token,
                                                                         int rank, int size, const Timeout& deadline) {
    return std::make_shared<SegmentRegion>(Segment::find(name_of(token)), rank, size, deadline);
  }
  [[nodiscard]] shared_memory::RegionToken make_sibling(int size, std::shared_ptr<void>& keep) override {
    return make(size, deadline(), keep);
  }
  [[nodiscard]] std::shared_ptr<shared_memory::SharedRegion> open_sibling(const shared_memory::RegionToken& token,
                                                                          int rank, int size) override {
    return open(token, rank, size, deadline());
  }
  [[nodiscard]] std::unique_ptr<shared_memory::RegionAllocation> new_allocation(const calls::RankOf& self) override;
  [[nodiscard]] std::unique_ptr<shared_memory::RegionAllocation> new_adoption(const calls::RankOf& self,
                                                                              Span<std::byte> memory) override;
  [[nodiscard]] shared_memory::RegionToken make_common(std::size_t bytes, const ErrorContext& context,
                                                       std::shared_ptr<void>& keep) override;
  [[nodiscard]] CommonMemory<Host> open_common(const shared_memory::RegionToken& token, std::size_t bytes,
                                               const std::vector<ByteRange>& own, const ErrorContext& context) override;

  /// Returns a control segment that other ranks can find.
  static Segment::Made make_control(int size) {
    const shared_memory::Extent extent = extent_for(size);
    Segment::Made made = Segment::make(shared_memory::SharedLayout::bytes_for(size, extent));
    shared_memory::SharedLayout control(made.segment->data(), size, extent);
    control.construct();
    for (int rank = 0; rank < size; ++rank) {
      new (control.mailbox(rank)) Mailbox;
      for (int other = 0; other < size; ++other)
        new (&control.reach(rank, other)) shared_memory::Reach(Access::unknown);
    }
    return made;
  }

  SegmentRegion(std::shared_ptr<Segment> control, int rank, int size, const Timeout& deadline)
      : SharedRegion({control->data(), size, extent_for(size)}, deadline, across_processes),
        segment_(std::move(control)),
        rank_(rank) {
    shared_memory::RankBlock& mine = this->control().rank(rank);
    mine.process = process_;
    mine.process_began = process_began_;
    mine.probe = &process_began_;
  }

  [[nodiscard]] shared_memory::SharedAddress address_of(const void* memory, std::size_t bytes) noexcept override {
    return shared.address_of(memory, bytes);
  }
  [[nodiscard]] std::byte* at(const shared_memory::SharedAddress& place) noexcept override { return shared.at(place); }
  [[nodiscard]] bool died(int rank) noexcept override {
    const shared_memory::RankBlock& other = control().rank(rank);
    return other.process != process_ && process_ended(other.process, other.process_began);
  }
  [[nodiscard]] bool detach_from(int rank) noexcept override { return !is_in_process(rank) && shared.detach(); }
  /// Returns whether a rank is in this process.
  [[nodiscard]] bool is_in_process(int rank) const noexcept { return control().rank(rank).process == process_; }

  void post(const std::shared_ptr<shared_memory::MessageRequest>& mine, const ErrorContext& context) override {
    Mailbox& box = mailbox(*mine);
    std::shared_ptr<MessageBuffer> buffer;
    CellData data = direct_data(*mine);
    Cell* cell = nullptr;
    bool second = false, needs_buffer = false, is_full = false;
    if (in_cells_.size() == in_cells_.capacity()) {
      advance_all();
      in_cells_.reserve(2 * in_cells_.size() + 16);  // reserves before a cell is taken: nothing may throw after it
    }
    const auto attempt = [&] {
      if (is_full) advance_all();  // frees the cells of completed messages that were not polled
      const MailboxLock lock(*this, box, rank_);
      if (!lock.held()) throw_stopped(lock.dead(), context);
      cell = box.counterpart(*mine);
      second = cell != nullptr;
      if (second) {
        cell->state.store(Cell::met, std::memory_order_release);
        return true;
      }
      needs_buffer = data.place == CellData::Place::in_buffer && buffer == nullptr;
      if (needs_buffer) return true;
      cell = box.take(*mine, data);
      is_full = cell == nullptr;
      return !is_full;
    };
    const auto full = [&] {
      return "timed out after " + deadline().to_string() + ": the mailbox of rank " + std::to_string(mine->to) +
             " is full (" + std::to_string(Mailbox::capacity) + " unreceived messages)";
    };
    do {
      wait(mine->sends ? mine->to : mine->from, context, attempt, full);
      if (!needs_buffer) continue;
      buffer = buffers_.take(mine->bytes);
      data.buffer = buffer->name;
    } while (cell == nullptr);
    if (second) return meet(*mine, *cell, context);
    mine->cell = box.index_of(*cell);
    mine->buffer = buffer;
    in_cells_.push_back(mine);
    if (!mine->sends || data.is_direct()) return;
    copy(buffer == nullptr ? cell->small : buffer->segment->data(), mine->source, mine->bytes);
    cell->shown.store(1, std::memory_order_release);
  }

  [[nodiscard]] bool advance(shared_memory::MessageRequest& mine) noexcept override {
    if (mine.done()) return true;
    Cell& cell = mailbox(mine).cell(mine.cell);
    const auto outcome = cell.outcome.load(std::memory_order_acquire);
    if (outcome == Cell::open) return false;
    std::exception_ptr error;
    if (outcome == Cell::failed) {
      error = std::make_exception_ptr(MemoryError("the other side of the message failed to map the data"));
    } else if (outcome == Cell::mismatch) {
      mine.mismatch = true;
      mine.other_count = cell.other_count;
      mine.other_type = cell.other_type;
    } else if (!mine.sends && !cell.data.is_direct()) {
      const auto* const buffer = static_cast<const MessageBuffer*>(mine.buffer.get());
      copy(mine.target, buffer == nullptr ? cell.small : buffer->segment->data(), mine.bytes);
    }
    give_back(mine, cell);
    mine.finish(error);
    return true;
  }

  bool withdraw(shared_memory::MessageRequest& mine) noexcept override {
    if (mine.done()) return false;
    Mailbox& box = mailbox(mine);
    Cell& cell = box.cell(mine.cell);
    const MailboxLock lock(*this, box, rank_);
    if (lock.held() && cell.state.load(std::memory_order_acquire) == Cell::met) return false;
    give_back(mine, cell);
    return true;
  }

  /// The memory allocated by the communicator.
  SharedTable shared;

 private:
  static constexpr std::size_t inline_bytes = 2048;
  static constexpr std::size_t least_staging_bytes = std::size_t{256} << 10;
  /// Messages from this size on are copied directly between processes that may access each other.
  static constexpr std::size_t least_direct_bytes = std::size_t{32} << 10;
  using Access = shared_memory::Access;

  Mailbox& mailbox(const shared_memory::MessageRequest& e) const noexcept {
    return *std::launder(reinterpret_cast<Mailbox*>(control().mailbox(e.to)));
  }
  static void copy(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
    if (bytes != 0) std::memmove(to, from, bytes);
  }
  static void give_back(shared_memory::MessageRequest& mine, Cell& cell) noexcept {
    mine.buffer = nullptr;
    cell.state.store(Cell::free, std::memory_order_release);
  }

  void advance_all() noexcept {
    std::erase_if(in_cells_, [this](const std::weak_ptr<shared_memory::MessageRequest>& weak) {
      const auto envelope = weak.lock();
      return envelope == nullptr || advance(*envelope);
    });
  }

  /// Returns where the first side of a message has its data; for a buffer, the buffer is still to be made.
  [[nodiscard]] CellData direct_data(const shared_memory::MessageRequest& mine) noexcept {
    CellData data;
    if (mine.bytes <= Cell::small_bytes) return data;
    std::byte* const memory = mine.sends ? const_cast<std::byte*>(mine.source) : mine.target;
    const int other = mine.sends ? mine.to : mine.from;
    data.shared = shared.address_of(memory, mine.bytes);
    data.address = memory;
    const bool in_reach =
        is_in_process(other) || (mine.bytes >= least_direct_bytes &&
                                 control().reach(other, rank_).load(std::memory_order_relaxed) == Access::granted);
    data.place = data.shared.segment != 0 ? CellData::Place::in_shared_memory
                 : in_reach               ? CellData::Place::in_process
                                          : CellData::Place::in_buffer;
    return data;
  }
  /// Returns whether this rank can access the memory of another rank's process, and it is that process: another one may
  /// have its number by now.
  [[nodiscard]] bool reaches(int other) const noexcept {
    const shared_memory::RankBlock& theirs = control().rank(other);
    std::uint64_t seen = 0;
    return other_process::read(theirs.process, reinterpret_cast<std::byte*>(&seen),
                               reinterpret_cast<const std::byte*>(theirs.probe), sizeof seen) &&
           seen == theirs.process_began;
  }
  /// Publishes whether this rank can access the memory of another rank's process.
  void try_reach(int other) noexcept {
    shared_memory::Reach& reach = control().reach(rank_, other);
    if (reach.load(std::memory_order_relaxed) != Access::unknown) return;
    reach.store(reaches(other) ? Access::granted : Access::denied, std::memory_order_relaxed);
  }
  /// Throws if a rank whose memory could not be accessed has died, or the communicator was revoked. The memory of a
  /// process that is killed goes before the process.
  void check_alive(int other, const ErrorContext& context) {
    const auto gone = [&] { return revoked() || died(other); };
    if (detail::wait_until(std::chrono::seconds(1), gone, [] { return false; }) == detail::WaitEnd::ready)
      throw_stopped(other, context);
  }
  /// Copies the data of a message that this rank has matched, as its second side.
  void transfer(const shared_memory::MessageRequest& mine, Cell& cell, const ErrorContext& context) {
    const CellData& data = cell.data;
    const int first = mine.sends ? mine.to : mine.from;
    std::byte* room = cell.small;
    std::shared_ptr<Segment> buffer;
    if (data.place == CellData::Place::in_process) {
      if (!is_in_process(first)) return reach_into(mine, data.address, first, context);
      room = data.address;
    } else if (data.place == CellData::Place::in_shared_memory) {
      room = shared.at(data.shared);
      if (room == nullptr) throw MemoryError("the memory of the message's other side is not mapped", context);
    } else if (data.place == CellData::Place::in_buffer) {
      try {
        buffer = buffers_.find(data.buffer);
      } catch (const MemoryError&) {
        check_alive(first, context);
        throw;
      }
      room = buffer->data();
      if (mine.bytes >= least_direct_bytes) try_reach(first);
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
  void reach_into(const shared_memory::MessageRequest& mine, std::byte* address, int first,
                  const ErrorContext& context) {
    const std::int64_t process = control().rank(first).process;
    const bool moved = reaches(first) && (mine.sends ? other_process::write(process, address, mine.source, mine.bytes)
                                                     : other_process::read(process, mine.target, address, mine.bytes));
    if (moved) return;
    const int code = errno;
    check_alive(first, context);
    throw MemoryError("cannot access the memory of rank " + std::to_string(first) + ": " + std::strerror(code), context,
                      code);
  }
  /// Gives the cell back to the first side, which waits for that.
  void settle(const shared_memory::MessageRequest& mine, Cell& cell, Cell::Outcome outcome) noexcept {
    cell.outcome.store(outcome, std::memory_order_seq_cst);
    ring_for_message(mine.sends ? mine.to : mine.from);
  }
  /// Completes the second side; `cell` belongs to the first side, which waits for the outcome.
  void meet(shared_memory::MessageRequest& mine, Cell& cell, const ErrorContext& context) {
    if (cell.bytes != mine.bytes || cell.type != mine.type || cell.lengths != mine.lengths) {
      mine.mismatch = true;
      mine.other_count = cell.count;
      mine.other_type = cell.type;
      cell.other_count = mine.count;
      cell.other_type = mine.type;
      settle(mine, cell, Cell::mismatch);
      return mine.finish();
    }
    try {
      transfer(mine, cell, context);
    } catch (...) {
      settle(mine, cell, Cell::failed);
      throw;
    }
    settle(mine, cell, Cell::done);
    mine.finish();
  }

  std::shared_ptr<Segment> segment_;
  int rank_;
  std::int64_t process_ = ::getpid();
  std::uint64_t process_began_ = process_state(process_).began;
  MessageBufferCache buffers_;
  std::vector<std::weak_ptr<shared_memory::MessageRequest>> in_cells_;  // messages of this rank
};

}  // namespace distx::detail::shm
