// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <atomic>
#include <new>

#include "distx/comm/calls/validate.hpp"
#include "distx/core/detail/bell.hpp"
#include "distx/memory/detail/lines.hpp"

// The memory shared by the ranks of a region. It contains no pointers, because each rank may map the segment at a
// different address.
namespace distx::inline DISTX_ABI::detail::shared_memory {

/// The queue of a call; blocking and asynchronous calls each have a channel.
enum class CallQueue { blocking, started };

/// The address of a rank's memory in a form valid on all ranks; segment 0 is memory that only its own rank can access.
struct SharedAddress {
  std::uint64_t segment = 0;
  std::uint64_t offset = 0;
};

/// The part of a published call that others read if it is large or differs: the addresses of its spans, and the values
/// that must agree. Counts are in separate rows.
struct CallDescriptor {
  SharedAddress send{};
  SharedAddress receive{};
  std::size_t send_count = 0;
  std::size_t receive_count = 0;
  bool has_send_counts = false;
  bool has_receive_counts = false;
  bool reads_all = false;        ///< this rank can copy from the memory of every other rank's process
  bool is_read = false;          ///< the others are to do so: this rank has not staged its data
  std::uint32_t line = 0;        ///< of the caller, for error messages
  std::byte* address = nullptr;  ///< of the data to send, in the rank's process; on a rank that receives, of its memory
  Fingerprint fingerprint{};
};

/// The part of a published call that all ranks read, on the cache line that they wait on; tiny calls need no other
/// line.
struct alignas(alignment_bytes) CallLine {
  /// The location of the data to send: small data is in the rank's slot, or in the line after this one, tiny data in
  /// this line.
  enum class Shown : std::uint8_t { elsewhere, in_slot, in_next_line, here };

  std::atomic<std::uint64_t> step{0};     ///< `step_of(call, 0)`, stored last; 0 while the line is written
  std::atomic<std::uint64_t> history{0};  ///< hash of the fingerprints of this call and of all before it
  std::uint32_t inlined_count = 0;        ///< elements, if they are in the slot or here
  Shown shown = Shown::elsewhere;
  bool has_counts = false;  ///< the rest of the call has counts
  alignas(8) std::byte tiny[40] = {};
};

/// A call as published by one rank. Each queue has a ring of them, because a rank may be some calls ahead of others.
///
/// The first two lines are a pair of lines, of which processors fetch both when one is read.
struct alignas(2 * alignment_bytes) PublishedCall {
  CallLine line;
  alignas(alignment_bytes) std::byte next_line[alignment_bytes] = {};
  CallDescriptor rest;
};

/// Returns the number of a step: a rank takes step 0 of a call by entering it, and one more per round that all ranks
/// begin together. Calls are numbered from 1. Steps only grow, also if ranks take different numbers of rounds.
[[nodiscard]] constexpr std::uint64_t step_of(std::uint64_t call, std::uint64_t round) noexcept {
  return call << 32 | round;
}

/// The progress of one rank in one queue.
struct alignas(alignment_bytes) CallSlot {
  std::atomic<std::uint64_t> step{0};  // the latest that this rank has taken
  alignas(alignment_bytes) std::atomic<std::uint32_t> busy{0};
  std::atomic<std::uint32_t> waits{0};  // whether the rank waits for others in this queue, for error messages
  Bell bell;                            // rung when the rank takes a step
  std::uint64_t climbs = 0;             // in the tree of arrivals
  // The rank to whose plain memory this one writes, or is about to, and the call in which it does.
  std::atomic<std::int32_t> writes_to{-1};
  std::atomic<std::uint64_t> write{0};
};

/// Sets a flag of a rank for the duration of a scope.
template <std::memory_order Order>
class FlagGuard {
 public:
  explicit FlagGuard(std::atomic<std::uint32_t>& flag) noexcept : flag_(flag) { flag.store(1, Order); }
  FlagGuard(const FlagGuard&) = delete;
  FlagGuard& operator=(const FlagGuard&) = delete;
  ~FlagGuard() { flag_.store(0, Order); }

 private:
  std::atomic<std::uint32_t>& flag_;
};
/// Marks a rank as accessing other ranks' buffers.
using AccessGuard = FlagGuard<std::memory_order_seq_cst>;
/// Marks a rank as waiting for others.
using WaitGuard = FlagGuard<std::memory_order_release>;

struct RankBlock {
  CallSlot channels[2];
  std::atomic<std::uint32_t> left{0};
  std::atomic<std::uint32_t> knows_mismatch{0};  // the rank has thrown MismatchError
  // The process ID of the rank and the start time of that process, if other ranks may have to check whether it is
  // alive; otherwise 0.
  std::int64_t process = 0;
  std::uint64_t process_began = 0;
  Bell message_bell;                     // rung when another rank completes a message of this one
  const std::uint64_t* probe = nullptr;  // in the rank's own memory, where it has stored process_began
  // By queue, in the rank's own memory: for each rank, the latest call in which it has completed a write to that
  // memory.
  std::atomic<std::uint64_t>* written[2] = {nullptr, nullptr};
};

/// Whether a rank can access the memory of another process, and whether that is quicker than a buffer that both map.
enum class Access : std::uint8_t { unknown, denied, granted, quick };
using Reach = std::atomic<Access>;

struct alignas(alignment_bytes) Header {
  std::atomic<std::uint32_t> revoked{0};  // 1 while the reason is being written, then 2
  std::atomic<std::int32_t> died{-1};     // the first rank that was found dead
  char reason[504] = {};
  Gate gates[2];  // of the queues, opened by the last rank to arrive if there are many
};

/// Counts the arrivals of a group of ranks, or of groups.
struct alignas(alignment_bytes) ArrivalNode {
  std::atomic<std::uint64_t> count{0};
};

static_assert(sizeof(CallLine) == alignment_bytes, "a tiny call reads one line of each other rank");
static_assert(sizeof(PublishedCall) == 4 * alignment_bytes, "the rest of a call takes two lines");
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free,
              "ranks that are processes share these");

/// The calls of all ranks in one queue that have the same number.
struct PublishedCalls {
  PublishedCall* first;
  std::size_t stride;

  [[nodiscard]] PublishedCall& operator[](int r) const noexcept { return first[static_cast<std::size_t>(r) * stride]; }
};

/// The bytes per rank for small data, for one round of staging, and for messages; and per pair of ranks for a message.
struct Extent {
  std::size_t inline_bytes = 0;
  std::size_t staging_bytes = 0;
  std::size_t mailbox_bytes = 0;
  std::size_t pair_bytes = 0;
};

/// Computes the addresses of the parts of the shared memory.
class SharedLayout {
 public:
  SharedLayout(std::byte* base, int size, const Extent& extent) noexcept
      : extent_(extent),
        ranks_(static_cast<std::size_t>(size)),
        ring_(ranks_ > most_without_tree || extent.inline_bytes == 0 ? least_ring : longest_ring),
        base_(base) {
    row_bytes_ = round_up_to_lines(ranks_ * sizeof(std::size_t));
    blocks_ = round_up_to_lines(sizeof(Header));
    nodes_ = blocks_ + ranks_ * sizeof(RankBlock);
    published_ = nodes_ + (has_tree() ? 2 * nodes_of(ranks_) * sizeof(ArrivalNode) : 0);
    published_ += published_ % alignof(PublishedCall);
    rows_ = published_ + ranks_ * 2 * ring() * sizeof(PublishedCall);
    inlined_ = rows_ + ranks_ * 2 * ring() * 2 * row_bytes_;
    staging_ = inlined_ + ranks_ * 2 * ring() * round_up_to_lines(extent.inline_bytes);
    mailboxes_ = staging_ + ranks_ * 2 * 2 * extent.staging_bytes;
    reach_ = mailboxes_ + ranks_ * extent.mailbox_bytes;
    pairs_ = reach_ + round_up_to_lines(extent.mailbox_bytes == 0 ? 0 : ranks_ * ranks_ * sizeof(Reach));
    bytes_ = pairs_ + ranks_ * ranks_ * extent.pair_bytes;
  }

  [[nodiscard]] static std::size_t bytes_for(int size, const Extent& extent) noexcept {
    return SharedLayout(nullptr, size, extent).bytes_;
  }
  /// Constructs the objects in the shared memory. Called once, before any other rank accesses it.
  /// @pre the memory begins at a multiple of alignof(PublishedCall)
  void construct() noexcept {
    new (base_) Header;
    for (std::size_t rank = 0; rank < ranks_; ++rank) new (base_ + blocks_ + rank * sizeof(RankBlock)) RankBlock;
    for (std::size_t call = 0; call < ranks_ * 2 * ring(); ++call)
      new (base_ + published_ + call * sizeof(PublishedCall)) PublishedCall;
    if (!has_tree()) return;
    for (std::size_t node = 0; node < 2 * nodes_of(ranks_); ++node)
      new (base_ + nodes_ + node * sizeof(ArrivalNode)) ArrivalNode;
  }

  [[nodiscard]] int size() const noexcept { return static_cast<int>(ranks_); }
  /// Returns whether ranks arrive by a tree. A few ranks read each other's words in less time.
  [[nodiscard]] bool has_tree() const noexcept { return ranks_ > most_without_tree; }
  /// Returns the number of calls that a rank publishes before it reuses the memory of the first.
  [[nodiscard]] std::size_t ring() const noexcept { return ring_; }
  /// Returns whether a rank whose part of a call is done may be up to `ring() - 1` calls ahead of the others. That
  /// takes slots for data, and steps that ranks need not take together.
  [[nodiscard]] bool has_ranks_ahead() const noexcept { return ring_ > least_ring; }
  /// Counts a rank's arrival number `now` in the tree; returns whether it is the last. @pre has_tree()
  [[nodiscard]] bool climb(CallQueue queue, int r, std::uint64_t now) const noexcept {
    std::size_t index = static_cast<std::size_t>(r), members = ranks_;
    std::size_t level = static_cast<std::size_t>(queue) * nodes_of(ranks_);
    while (members > 1) {
      const std::size_t group = index / fan_in, groups = (members + fan_in - 1) / fan_in;
      const std::uint64_t expected = std::min(members - group * fan_in, fan_in) * now;
      auto& count = at<ArrivalNode>(nodes_, level + group).count;
      if (count.fetch_add(1, std::memory_order_acq_rel) + 1 != expected) return false;
      level += groups;
      index = group;
      members = groups;
    }
    return true;
  }
  [[nodiscard]] const Extent& extent() const noexcept { return extent_; }
  [[nodiscard]] Header& header() const noexcept { return at<Header>(0, 0); }
  [[nodiscard]] RankBlock& rank(int r) const noexcept { return at<RankBlock>(blocks_, static_cast<std::size_t>(r)); }
  [[nodiscard]] CallSlot& channel(int r, CallQueue queue) const noexcept {
    return rank(r).channels[static_cast<std::size_t>(queue)];
  }
  [[nodiscard]] PublishedCall& published(int r, CallQueue queue, std::uint64_t call) const noexcept {
    return published(queue, call)[r];
  }
  [[nodiscard]] PublishedCalls published(CallQueue queue, std::uint64_t call) const noexcept {
    return {&at<PublishedCall>(published_, in_ring(0, queue, call)), 2 * ring_};
  }
  /// Returns one count per rank: sent (side 0) or received (side 1).
  [[nodiscard]] std::size_t* row(int r, CallQueue queue, std::uint64_t call, std::size_t side) const noexcept {
    return reinterpret_cast<std::size_t*>(base_ + rows_ + (in_ring(r, queue, call) * 2 + side) * row_bytes_);
  }
  [[nodiscard]] std::byte* inlined(int r, CallQueue queue, std::uint64_t call) const noexcept {
    return base_ + inlined_ + in_ring(r, queue, call) * round_up_to_lines(extent_.inline_bytes);
  }
  /// Returns the staging buffer of a rank for a round: first its data, then the results that other ranks have reduced
  /// for it if they cannot access its memory. Rounds alternate between two halves.
  [[nodiscard]] std::byte* staging(int r, CallQueue queue, std::size_t round) const noexcept {
    return base_ + staging_ + (of_queue(r, queue) * 2 + round % 2) * extent_.staging_bytes;
  }
  /// Returns whether rank `from` can access all memory of rank `to`, as it has found out. @pre there are mailboxes
  [[nodiscard]] Reach& reach(int from, int to) const noexcept { return at<Reach>(reach_, of_pair(from, to)); }
  /// Returns the memory for messages from one rank to another.
  [[nodiscard]] std::byte* pair(int from, int to) const noexcept {
    return base_ + pairs_ + of_pair(from, to) * extent_.pair_bytes;
  }
  [[nodiscard]] std::byte* mailbox(int r) const noexcept {
    return base_ + mailboxes_ + static_cast<std::size_t>(r) * extent_.mailbox_bytes;
  }

 private:
  /// Returns object `index` of those that begin at an offset.
  template <class T>
  [[nodiscard]] T& at(std::size_t offset, std::size_t index) const noexcept {
    return *std::launder(reinterpret_cast<T*>(base_ + offset + index * sizeof(T)));
  }
  [[nodiscard]] std::size_t of_pair(int from, int to) const noexcept {
    return static_cast<std::size_t>(from) * ranks_ + static_cast<std::size_t>(to);
  }
  static std::size_t of_queue(int r, CallQueue queue) noexcept {
    return static_cast<std::size_t>(r) * 2 + static_cast<std::size_t>(queue);
  }
  [[nodiscard]] std::size_t in_ring(int r, CallQueue queue, std::uint64_t call) const noexcept {
    return of_queue(r, queue) * ring_ + (call & (ring_ - 1));
  }

  static constexpr std::size_t most_without_tree = 8, fan_in = 16, least_ring = 2, longest_ring = 16;
  static constexpr std::size_t nodes_of(std::size_t members) noexcept {
    std::size_t nodes = 0;
    while (members > 1) nodes += members = (members + fan_in - 1) / fan_in;
    return nodes;
  }

  Extent extent_;
  std::size_t ranks_;
  std::size_t ring_;  // a power of two
  std::byte* base_;
  std::size_t row_bytes_, blocks_, nodes_, published_, rows_, inlined_, staging_, mailboxes_, reach_, pairs_, bytes_;
};

}  // namespace distx::inline DISTX_ABI::detail::shared_memory
