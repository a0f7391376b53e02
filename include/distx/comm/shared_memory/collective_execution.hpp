// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <vector>

#include "distx/comm/runtime/peer_views.hpp"
#include "distx/comm/shared_memory/shared_region.hpp"
#include "distx/memory/detail/lines.hpp"

namespace distx::inline DISTX_ABI::detail::shared_memory {

/// The workspace of one rank's queue, kept between calls to avoid allocations.
struct CallWorkspace {
  std::uint64_t calls = 0;     ///< the number of the latest call
  std::uint64_t history = 0;   ///< hash of the fingerprints of all calls
  std::uint64_t finished = 0;  ///< a call that every rank has completed, and all before it
  std::vector<PeerView> seen;
  std::vector<const void*> sources;
  std::vector<void*> targets;
};

/// Returns part `rank` of a range of bytes, partitioned on cache lines, so no two ranks write to one line of an aligned
/// buffer.
inline ByteRange slice_of(std::size_t bytes, int rank, int size) noexcept {
  const std::size_t begin = aligned_part_begin(bytes, rank, size);
  return {begin, aligned_part_begin(bytes, rank + 1, size) - begin};
}

/// One rank's execution of a call, round by round.
///
/// If all ranks can access the buffers, they work in place, in one round. Otherwise each rank copies its data to its
/// staging buffer, in rounds of at most a buffer's size per destination. Round k uses half k % 2, so a rank can stage
/// the next round while others still read this one.
class CollectiveExecution {
 public:
  CollectiveExecution(SharedRegion& region, CallQueue queue, const Call<Host>& made, const RankOf& rank,
                      CallWorkspace& kept)
      : call(made),
        traits(traits_of(made.kind)),
        width(element_width(made)),
        self(rank),
        workspace(kept),
        region_(region),
        control_(region.control()),
        queue_(queue),
        number_(++kept.calls),
        published_(control_.published(queue, number_)) {
    kept.seen.resize(static_cast<std::size_t>(rank.size));
  }

  const Call<Host>& call;
  const CallTraits& traits;
  const std::size_t width;  ///< bytes of one element
  const RankOf& self;
  CallWorkspace& workspace;

  [[nodiscard]] const PeerView& peer(int r) const noexcept { return workspace.seen[static_cast<std::size_t>(r)]; }

  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
  [[nodiscard]] const CallLine& line_of(int r) const noexcept { return published_[r].line; }
  [[nodiscard]] bool sends(int r) const noexcept { return !traits.root_sends || r == call.root; }

  /// Publishes this rank's call: small data whole, and the first round of data that only this rank can access.
  [[gnu::always_inline]] void publish() {
    PublishedCall& published = published_[self.rank];
    CallLine& line = published.line;
    CallDescriptor& post = published.rest;
    PeerView& mine = workspace.seen[static_cast<std::size_t>(self.rank)];
    view_own_call(mine, call, self.rank);
    const bool has_data = sends(self.rank);

    line.step.store(0, std::memory_order_relaxed);
    new (&post.fingerprint) Fingerprint(fingerprint(call));  // without a copy
    workspace.history = mixed(workspace.history, digest_of(post.fingerprint));
    line.history.store(workspace.history, std::memory_order_release);  // after the step is 0
    post.send_count = mine.send_count;
    post.receive_count = mine.receive_count;
    post.has_send_counts = publish_counts(mine.send_counts, 0);
    post.has_receive_counts = publish_counts(mine.receive_counts, 1);
    line.has_counts = post.has_send_counts || post.has_receive_counts;
    const std::size_t bytes = mine.send_count * width;
    // Of a small all-reduce, every rank reads all operands: a large one is faster in slices.
    const std::size_t most = control_.extent().inline_bytes / (call.kind == CollectiveKind::all_reduce ? 2 : 1);
    mine.inlined = bytes <= most;
    line.shown = !mine.inlined                         ? CallLine::Shown::elsewhere
                 : bytes <= sizeof line.tiny           ? CallLine::Shown::here
                 : bytes <= sizeof published.next_line ? CallLine::Shown::in_next_line
                                                       : CallLine::Shown::in_slot;
    post.line = call.location.line();
    if (mine.inlined) {
      line.inlined_count = static_cast<std::uint32_t>(mine.send_count);
      if (has_data) copy_bytes(inlined(self.rank, line), mine.send, bytes);
    }
    // If all ranks pass the same number of elements, nobody reads the rest of a call that is inlined.
    if (!mine.inlined || !traits.same_count || !call.counts.empty()) publish_rest(post, line, bytes);
    line.step.store(step_of(number_, 0), std::memory_order_release);
  }

  /// Takes the cache lines of the next call, presumably of the same size, from the ranks that have read them, while
  /// this rank waits: publishing the call is then a matter of this core's cache.
  void take_next_lines() noexcept {
    if (workspace.finished + control_.ring() <= number_) return;  // may still be read
    PublishedCall& next = control_.published(self.rank, queue_, number_ + 1);
    next.line.step.store(0, std::memory_order_relaxed);
    next_lines(self.rank, next, [](std::byte* line) { *line = {}; });
  }
  /// Prefetches the cache lines of another rank's next call, which it has perhaps published.
  void prefetch_next(int r) const noexcept {
    PublishedCall& next = control_.published(r, queue_, number_ + 1);
    __builtin_prefetch(&next.line);
    next_lines(r, next, [](const std::byte* line) { __builtin_prefetch(line); });
  }

  /// Returns whether this rank's part of the call is done once it has published it: the others need nothing else of it,
  /// and it needs nothing of them.
  [[nodiscard]] bool is_done() const noexcept {
    if (!control_.has_ranks_ahead()) return false;
    return traits.rooted && (self.rank == call.root) == traits.root_sends && peer(self.rank).inlined;
  }
  /// Reads the root's post after the root has arrived, if the root sends; returns whether it holds all data.
  [[nodiscard]] bool look_at_root() {
    if (!traits.root_sends || !look_at_line(call.root)) return false;
    if (traits.exchanges_counts && line_of(call.root).has_counts) look_at_rest(call.root);
    return true;
  }

  /// Completes a call in which this rank needs at most the root's data, which is in its slot.
  void take_from_root(const ErrorContext& context) const {
    if (!traits.root_sends) return;
    check_own_block(call, workspace.seen, self.rank, context);
    const ByteRange own = range_of(call, workspace.seen, call.root, self.rank);
    copy_bytes(own_receive(), peer(call.root).send + own.offset, own.bytes);
  }

  /// Reads all ranks' posts after all ranks have arrived.
  void look() {
    // This rank's operand is read where it is: its published copy may still be on its way to the cache.
    bool all_inlined = peer(self.rank).inlined || !sends(self.rank);
    for (int r = 0; r < self.size; ++r)
      if (r != self.rank && !look_at_line(r) && sends(r)) all_inlined = false;
    if (all_inlined && !needs_rest()) return;
    if (!all_inlined) look_at_line(self.rank);
    for (int r = 0; r < self.size; ++r) look_at_rest(r);
    if (all_inlined) return;
    transfer_ = chosen_transfer();
    if (late())
      for (PeerView& seen : workspace.seen)
        if (!seen.inlined) seen.send = nullptr;
    chunk_ = staged() ? round_bytes() : static_cast<std::size_t>(-1);
  }

  /// Returns whether all data is in the slots, so a rank is done once it has read them.
  [[nodiscard]] bool all_inlined() const noexcept { return transfer_ == Transfer::in_slots; }
  /// Returns the number of rounds, the same on all ranks.
  [[nodiscard]] std::size_t rounds() const noexcept {
    if (!staged()) return 1;
    std::size_t longest = 0;
    for (int from = 0; from < self.size; ++from)
      for (int to = 0; to < (traits.blockwise ? self.size : 1); ++to)
        longest = std::max(longest, range_of(call, workspace.seen, from, to).bytes);
    return (longest + chunk_ - 1) / chunk_;
  }
  /// Returns whether the first round must be staged after the posts were compared.
  [[nodiscard]] bool late() const noexcept { return transfer_ == Transfer::staged_late; }
  /// Returns whether a rank takes part in the rounds: in a gather, those that have published their data do not.
  [[nodiscard]] bool joins_rounds(int r) const noexcept {
    return call.kind != CollectiveKind::gather || r == call.root || !peer(r).inlined || !control_.has_ranks_ahead();
  }
  /// Returns whether a rank receives reduced data in memory that its peers cannot access.
  [[nodiscard]] bool has_results() const noexcept { return transfer_ == Transfer::staged_with_results; }
  [[nodiscard]] bool staged() const noexcept { return transfer_ >= Transfer::staged; }

  /// Copies this rank's data of round `round` to its staging buffer.
  void staging(std::size_t round) noexcept {
    if (!sends(self.rank)) return;
    for (int to = 0; to < (traits.blockwise ? self.size : 1); ++to) {
      const ByteRange run = range_of(call, workspace.seen, self.rank, to);
      const std::size_t begin = std::min(run.bytes, round * chunk_), bytes = std::min(run.bytes - begin, chunk_);
      const std::byte* const from = call.send.bytes() + run.offset + begin;
      std::byte* const shown = control_.staging(self.rank, queue_, round);
      // This rank reads its own data in place, so it is not copied.
      if (call.kind == CollectiveKind::all_reduce || call.kind == CollectiveKind::reduce) {
        const ByteRange own = slice_of(bytes, self.rank, self.size);
        const std::size_t end = own.offset + own.bytes;
        copy_bytes(shown, from, own.offset);
        copy_bytes(shown + end, from + end, bytes - end);
      } else if (traits.blockwise) {
        if (to != self.rank) copy_bytes(shown + static_cast<std::size_t>(to) * chunk_, from, bytes);
      } else {
        copy_bytes(shown, from, bytes);
      }
    }
  }
  /// Returns whether this rank stages data in every round.
  [[nodiscard]] bool shows() const noexcept { return late() || (staged() && hidden_); }

  /// Returns the begin of the data that `from` sends to `to` in a round, in this rank's address space; null if this
  /// rank has none to send.
  [[nodiscard]] const std::byte* source(int from, int to, std::size_t round) const noexcept {
    const std::size_t begin = offset(round);
    const std::byte* const data = from == self.rank ? call.send.bytes() : peer(from).send;
    if (data != nullptr) return data + range_of(call, workspace.seen, from, to).offset + begin;
    if (from == self.rank) return nullptr;
    return control_.staging(from, queue_, round) + static_cast<std::size_t>(traits.blockwise ? to : 0) * chunk_;
  }
  /// Copies a part of the data that `from` sends to `to` in a round.
  void take(std::byte* target, int from, int to, std::size_t round, ByteRange part) {
    if (part.bytes == 0) return;
    if (transfer_ != Transfer::read || from == self.rank || peer(from).send != nullptr)
      return copy_bytes(target, source(from, to, round) + part.offset, part.bytes);
    const std::byte* const there = published_[from].rest.address;
    region_.read(from, target, there + range_of(call, workspace.seen, from, to).offset + part.offset, part.bytes,
                 self.context(call));
  }
  void take(std::byte* target, int from, int to, std::size_t round) {
    take(target, from, to, round, {0, piece(from, to, round)});
  }
  /// Returns whether the root of a call copies a part of what moves between it and another rank, from `from` to `to`:
  /// otherwise the root waits while the others read its memory, or all others while the root reads theirs.
  [[nodiscard]] bool divides(int from, int to, std::size_t round) const noexcept {
    const bool in_place = transfer_ == Transfer::in_place && call.kind != CollectiveKind::broadcast &&
                          peer(from).send != nullptr && peer(to).receive != nullptr;
    return (in_place || transfer_ == Transfer::read) && piece(from, to, round) >= least_read_bytes;
  }
  /// Copies this rank's part to where the buffer of `to` continues after `offset_bytes`: of N ranks, the root copies an
  /// N-th of what moves between it and each other rank, so that all ranks copy the same amount if their blocks are
  /// equal. @pre divides(from, to, round)
  void copy_part(int from, int to, std::size_t round, std::size_t offset_bytes) {
    const std::size_t bytes = piece(from, to, round), mark = slice_of(bytes, 0, self.size).bytes;
    const ByteRange part = self.rank == call.root ? ByteRange{0, mark} : ByteRange{mark, bytes - mark};
    if (self.rank == to) return take(own_receive() + offset_bytes + part.offset, from, to, round, part);
    const std::byte* const data = source(from, to, round) + part.offset;
    if (peer(to).receive != nullptr) return copy_bytes(peer(to).receive + offset_bytes + part.offset, data, part.bytes);
    std::byte* const there = published_[to].rest.address;
    region_.write(to, queue_, number_, there + offset_bytes + part.offset, data, part.bytes, self.context(call));
  }
  /// Returns the size of that data in bytes.
  [[nodiscard]] std::size_t piece(int from, int to, std::size_t round) const noexcept {
    const std::size_t bytes = range_of(call, workspace.seen, from, to).bytes;
    return std::min(bytes - std::min(bytes, offset(round)), chunk_);
  }
  /// Returns the bytes that the earlier rounds transfer.
  [[nodiscard]] std::size_t offset(std::size_t round) const noexcept { return staged() ? round * chunk_ : 0; }
  [[nodiscard]] std::byte* staging_of(int r, std::size_t round) const noexcept {
    return control_.staging(r, queue_, round);
  }
  [[nodiscard]] std::byte* own_receive() const noexcept { return call.receive.bytes(); }
  /// Returns whether rank r receives data that all ranks reduce in slices.
  [[nodiscard]] bool receives_reduced(int r) const noexcept {
    return call.kind == CollectiveKind::all_reduce || (call.kind == CollectiveKind::reduce && r == call.root);
  }

  /// Returns where the data that each rank sends to this one begins in a round, after `offset_bytes`.
  [[nodiscard]] std::span<const void* const> operands(std::size_t offset_bytes, std::size_t round) const {
    workspace.sources.clear();
    for (int r = 0; r < self.size; ++r) workspace.sources.push_back(source(r, self.rank, round) + offset_bytes);
    return workspace.sources;
  }
  void reduce(std::size_t offset_bytes, std::size_t bytes, std::size_t round) {
    const auto sources = operands(offset_bytes, round);
    call.op.reduce(workspace.targets.data(), workspace.targets.size(), sources.data(), sources.size(), bytes / width,
                   self.size);
  }

 private:
  /// How the data of a call moves, the same on all ranks.
  enum class Transfer : std::uint8_t {
    in_slots,             ///< all data was published with the calls
    in_place,             ///< the ranks access the buffers
    read,                 ///< the ranks copy from and to the processes whose memory is not shared
    staged,               ///< ranks whose memory is not shared copy it to staging buffers, round by round
    staged_late,          ///< the same for all ranks, from the first round on only after the calls were compared
    staged_with_results,  ///< as `staged`; reduced data, too, is passed in staging buffers
  };

  /// From this size on a rank's data is copied directly from its process, if every rank can do that, and the root
  /// copies a part.
  static constexpr std::size_t least_read_bytes = std::size_t{16} << 10;
  /// One of two ranks copies a round while the other stages the next: short rounds overlap more.
  static constexpr std::size_t pipelined_bytes = std::size_t{32} << 10;

  /// Returns whether the other ranks may copy from a rank's own memory: the call only moves data, which no rank
  /// overwrites meanwhile.
  [[nodiscard]] bool can_be_read() const noexcept {
    if (call.kind == CollectiveKind::all_to_all) return call.send.data() != call.receive.data();
    return !traits.reduces;
  }
  /// Returns whether all ranks stage data after the calls were compared, unless every rank can access all of it: in
  /// place, no rank may read data that its owner overwrites.
  [[nodiscard]] bool stages_late() const noexcept {
    return call.kind == CollectiveKind::all_to_all && call.counts.empty() && call.send.data() == call.receive.data();
  }
  /// Returns whether other ranks may write to this rank's buffer, or need its length. @pre not a scatter
  [[nodiscard]] bool shows_receive(bool inlined, const CallLine& line) const noexcept {
    if (call.kind == CollectiveKind::all_gather || call.kind == CollectiveKind::barrier) return false;
    return !inlined || (call.kind == CollectiveKind::gather && line.has_counts);
  }
  /// Returns whether no other rank reads this rank's data: it receives what a root sends, or is the root that receives.
  [[nodiscard]] bool only_receives() const noexcept {
    if (call.kind == CollectiveKind::gather) return self.rank == call.root;
    return traits.root_sends && self.rank != call.root;
  }
  /// @pre not all data is in the slots
  [[nodiscard]] Transfer chosen_transfer() noexcept {
    for (int r = 0; r < self.size; ++r)
      if (receives_reduced(r) && peer(r).receive == nullptr && !peer(r).inlined) return Transfer::staged_with_results;
    bool all_accessible = true;
    for (int r = 0; r < self.size; ++r)
      if (sends(r) && peer(r).send == nullptr) all_accessible = false;
    if (call.kind == CollectiveKind::gather) all_accessible = all_accessible || peer(call.root).receive != nullptr;
    if (all_accessible) return Transfer::in_place;
    if (can_be_read()) return read_or_staged();
    return stages_late() && !peer(self.rank).inlined ? Transfer::staged_late : Transfer::staged;
  }
  /// Decides whether data in memory that is not shared is read there.
  [[nodiscard]] Transfer read_or_staged() noexcept {
    bool all_read = true, some_is_read = false, some_is_staged = false;
    for (int r = 0; r < self.size; ++r) {
      const CallDescriptor& post = published_[r].rest;
      all_read = all_read && post.reads_all;
      some_is_read = some_is_read || post.is_read;
      if (sends(r) && peer(r).send == nullptr && !post.is_read) some_is_staged = true;
    }
    if (!all_read) region_.try_reading_all();
    if (all_read && !some_is_staged) return Transfer::read;
    return some_is_read ? Transfer::staged_late : Transfer::staged;
  }
  /// Returns the memory in which a rank publishes small data.
  [[nodiscard]] std::byte* inlined(int r, CallLine& line) const noexcept {
    if (line.shown == CallLine::Shown::here) return line.tiny;
    if (line.shown == CallLine::Shown::in_next_line) return published_[r].next_line;
    return control_.inlined(r, queue_, number_);
  }
  /// Calls `f` with each cache line in which a rank will publish data if its next call is as large as this one.
  template <class F>
  void next_lines(int r, PublishedCall& next, F&& f) const noexcept {
    const CallLine& line = line_of(r);
    if (line.shown == CallLine::Shown::in_next_line) f(next.next_line);
    if (line.shown != CallLine::Shown::in_slot) return;
    std::byte* const slot = control_.inlined(r, queue_, number_ + 1);
    for (std::size_t offset = 0, bytes = line.inlined_count * width; offset < bytes; offset += alignment_bytes)
      f(slot + offset);
  }
  void publish_rest(CallDescriptor& post, const CallLine& line, std::size_t bytes) {
    const PeerView& mine = peer(self.rank);
    const bool has_data = sends(self.rank);
    const std::size_t received = mine.receive_count * width;
    post.send = post.receive = {};
    if (!mine.inlined && has_data) post.send = region_.address_of(mine.send, bytes);
    if (call.kind == CollectiveKind::scatter ? received >= least_read_bytes : shows_receive(mine.inlined, line))
      post.receive = region_.address_of(mine.receive, received);
    hidden_ = !mine.inlined && post.send.segment == 0;
    post.reads_all = can_be_read() && region_.reads_all();
    post.is_read = hidden_ && post.reads_all && has_data && bytes >= least_read_bytes;
    post.address = only_receives() ? mine.receive : const_cast<std::byte*>(mine.send);
    if (!hidden_) return;
    chunk_ = round_bytes();
    if (!post.is_read && !stages_late()) staging(0);
  }
  bool publish_counts(Counts counts, std::size_t side) noexcept {
    if (counts.empty()) return false;
    std::copy(counts.begin(), counts.end(), control_.row(self.rank, queue_, number_, side));
    return true;
  }
  /// Reads the line of a rank's call; returns whether it publishes all data of that rank.
  bool look_at_line(int r) noexcept {
    CallLine& line = published_[r].line;
    PeerView& seen = workspace.seen[static_cast<std::size_t>(r)];
    seen.inlined = line.shown != CallLine::Shown::elsewhere;
    if (!seen.inlined) return false;
    seen.send_count = line.inlined_count;
    if (!traits.reduces || r != self.rank) seen.send = inlined(r, line);
    if (!traits.exchanges_counts || line.has_counts) return true;
    seen.send_counts = seen.receive_counts = {};
    // Validation has compared these two on the root.
    if (call.kind == CollectiveKind::scatter)
      seen.receive_count = seen.send_count / static_cast<std::size_t>(self.size);
    return true;
  }
  /// Returns whether the lines of the ranks' calls do not suffice to check the blocks. @pre all data is in the slots
  [[nodiscard]] bool needs_rest() const noexcept {
    if (!traits.exchanges_counts) return false;
    if (call.kind == CollectiveKind::scatter) return true;  // receive counts
    for (int r = 0; r < self.size; ++r)
      if (line_of(r).has_counts) return true;
    return false;
  }
  /// Reads the rest of a rank's call.
  void look_at_rest(int r) noexcept {
    const CallDescriptor& post = published_[r].rest;
    PeerView& seen = workspace.seen[static_cast<std::size_t>(r)];
    if (!seen.inlined) {
      seen.send = region_.at(post.send);
      seen.send_count = post.send_count;
    }
    seen.receive = region_.at(post.receive);
    seen.receive_count = post.receive_count;
    const auto ranks = static_cast<std::size_t>(self.size);
    const auto counts = [&](bool has, std::size_t side) {
      return has ? Counts(control_.row(r, queue_, number_, side), ranks) : Counts{};
    };
    seen.send_counts = counts(post.has_send_counts, 0);
    seen.receive_counts = counts(post.has_receive_counts, 1);
  }
  /// Returns the most bytes to each destination in one round.
  [[nodiscard]] std::size_t round_bytes() const noexcept {
    const std::size_t whole = control_.extent().staging_bytes;
    if (self.size == 2 && !traits.reduces && call.kind != CollectiveKind::all_to_all)
      return std::min(whole / 2, pipelined_bytes);
    return traits.blockwise ? whole / static_cast<std::size_t>(self.size) / alignment_bytes * alignment_bytes : whole;
  }

  SharedRegion& region_;
  const SharedLayout& control_;
  CallQueue queue_;
  std::uint64_t number_;
  PublishedCalls published_;
  std::size_t chunk_ = 0;
  bool hidden_ = false;  ///< the other ranks cannot access this rank's data
  Transfer transfer_ = Transfer::in_slots;
};

}  // namespace distx::inline DISTX_ABI::detail::shared_memory
