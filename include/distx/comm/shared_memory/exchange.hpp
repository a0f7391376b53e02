// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <vector>

#include "distx/comm/shared_memory/arena.hpp"
#include "distx/memory/detail/lines.hpp"

namespace distx::shared_memory {

/// A rank's post as another rank sees it: null where it does not reach the memory.
struct Seen {
  const std::byte* send = nullptr;
  std::byte* receive = nullptr;
  std::size_t send_count = 0;
  std::size_t receive_count = 0;
  Counts send_counts{};
  Counts receive_counts{};
  bool inlined = false;
};

/// What a lane of one rank keeps between calls, so that none allocates.
struct Workspace {
  std::size_t calls = 0;
  std::vector<Seen> seen;
  std::vector<const void*> sources;
  std::vector<void*> targets;
};

/// What one rank sends to another in a call, in bytes of its `send`.
struct Run {
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

template <class Call>
inline constexpr bool is_reduction = requires(const Call& c) { c.op; };

template <Collective Call>
std::size_t width_of(const Call& c) noexcept {
  if constexpr (requires { c.buffer; })
    return c.buffer.element_bytes();
  else if constexpr (Call::name == "scatter")
    return c.receive.element_bytes();
  else if constexpr (requires { c.send; })
    return c.send.element_bytes();
  else
    return 1;
}

/// Whether rank `from` sends anything in such a call.
template <Collective Call>
bool sends(const Call& c, int from) noexcept {
  if constexpr (Call::name == "broadcast" || Call::name == "scatter")
    return from == c.root;
  else if constexpr (Call::name == "barrier")
    return false;
  else
    return true;
}

/// What every rank sends: one run for all, or a block for each.
template <Collective Call>
inline constexpr bool blockwise =
    Call::name == "reduce_scatter" || Call::name == "all_to_all" || Call::name == "scatter";

/// Whether a rank must look at the counts of others: what fingerprints do not make alike.
template <Collective Call>
inline constexpr bool has_rows = Call::name == "gather" || Call::name == "scatter" || Call::name == "all_to_all";

/// Part `rank` of some bytes, cut on lines, so that two ranks never write to one line of an aligned buffer.
inline Run slice_of(std::size_t bytes, int rank, int size) noexcept {
  const std::size_t begin = detail::aligned_part_begin(bytes, rank, size);
  return {begin, detail::aligned_part_begin(bytes, rank + 1, size) - begin};
}

template <Collective Call>
Run run_of(const Call& c, const std::vector<Seen>& seen, int from, int to) noexcept {
  if (!sends(c, from)) return {};
  const Seen& sender = seen[static_cast<std::size_t>(from)];
  const std::size_t width = width_of(c);
  if constexpr (!blockwise<Call>) {
    return {0, sender.send_count * width};
  } else {
    Counts counts = sender.send_counts;
    std::size_t equal = 0;
    if constexpr (Call::name == "reduce_scatter") {
      counts = c.counts;  // alike on all ranks
      equal = c.receive.size();
    }
    if constexpr (Call::name == "all_to_all") equal = sender.send_count / seen.size();
    if constexpr (Call::name == "scatter") equal = sender.receive_count;
    return {block_offset(counts, equal, to) * width, block_count(counts, equal, to) * width};
  }
}

/// One call as one rank goes through it: who shows what where, round by round.
///
/// Memory that all ranks reach is worked on in place, in one round. Memory that its rank alone reaches is shown in
/// rounds of at most a stage's bytes of each run: what is shown in round k lies in half k % 2, so that the next round
/// can be staged while others still read this one.
template <Collective Call>
class Exchange {
 public:
  Exchange(Arena& arena, Lane lane, const Call& made, const RankOf& rank, Workspace& kept)
      : call(made), self(rank), workspace(kept), arena_(arena), control_(arena.control()), lane_(lane) {
    kept.seen.resize(static_cast<std::size_t>(rank.size));
    parity_ = kept.calls++ % 2;
  }

  const Call& call;
  const RankOf& self;
  Workspace& workspace;

  [[nodiscard]] const Seen& peer(int r) const noexcept { return workspace.seen[static_cast<std::size_t>(r)]; }

  /// Writes this rank's post; shows what is small whole, and of what only this rank reaches the first round.
  void publish() {
    Post& post = control_.channel(self.rank, lane_).posts[parity_];
    Seen& mine = workspace.seen[static_cast<std::size_t>(self.rank)];
    mine = {};
    if constexpr (requires { call.buffer; }) {
      mine.send = mine.receive = call.buffer.bytes();
      mine.send_count = mine.receive_count = call.buffer.size();
    } else if constexpr (requires { call.send; }) {
      mine.send = call.send.bytes();
      mine.receive = call.receive.bytes();
      mine.send_count = call.send.size();
      mine.receive_count = call.receive.size();
    }
    if constexpr (requires {
                    call.root;
                    call.counts;
                  }) {
      if (self.rank == call.root) mine.send_counts = call.counts;
    } else if constexpr (requires { call.counts; }) {
      mine.send_counts = call.counts;
    } else if constexpr (requires { call.send_counts; }) {
      mine.send_counts = call.send_counts;
      mine.receive_counts = call.receive_counts;
    }
    own_send_ = mine.send;
    own_receive_ = mine.receive;

    Summary& summary = control_.channel(self.rank, lane_).summaries[parity_];
    post.fingerprint = fingerprint(call);
    summary.digest = digest_of(post.fingerprint);
    post.send_count = mine.send_count;
    post.receive_count = mine.receive_count;
    post.has_send_counts = publish_counts(mine.send_counts, 0);
    post.has_receive_counts = publish_counts(mine.receive_counts, 1);
    const std::size_t bytes = mine.send_count * width_of(call);
    mine.inlined = bytes <= control_.extent().inline_bytes;
    summary.shown = !mine.inlined                  ? Summary::Shown::elsewhere
                    : bytes <= sizeof summary.tiny ? Summary::Shown::here
                                                   : Summary::Shown::in_slot;
    if (mine.inlined) summary.inlined_count = static_cast<std::uint32_t>(mine.send_count);
    post.send = post.receive = {};
    if (!mine.inlined && sends(call, self.rank)) post.send = arena_.place_of(mine.send, bytes);
    if constexpr (is_reduction<Call> || Call::name == "gather" || Call::name == "all_to_all" ||
                  Call::name == "broadcast")
      if (!mine.inlined || Call::name == "gather")
        post.receive = arena_.place_of(mine.receive, mine.receive_count * width_of(call));
    if (mine.inlined && sends(call, self.rank)) copy_bytes(inlined(self.rank, summary), mine.send, bytes);
    chunk_ = blockwise<Call> ? stage_share() : control_.extent().stage_bytes;
    hidden_ = !mine.inlined && post.send.segment == 0;
    if (hidden_) stage(0);
  }

  /// Looks at all posts, once all have arrived.
  void look() {
    all_inlined_ = true;
    for (int r = 0; r < self.size; ++r) {
      Summary& summary = control_.channel(r, lane_).summaries[parity_];
      Seen& seen = workspace.seen[static_cast<std::size_t>(r)];
      seen.inlined = summary.shown != Summary::Shown::elsewhere;
      if (seen.inlined) {
        seen.send_count = summary.inlined_count;
        seen.send = inlined(r, summary);
      } else if (sends(call, r)) {
        all_inlined_ = false;
      }
    }
    if (all_inlined_ && !has_rows<Call>) return;
    bool same_place = false;
    if constexpr (Call::name == "all_to_all")
      same_place = call.send_counts.empty() && call.send.data() == call.receive.data();
    for (int r = 0; r < self.size; ++r) {
      const Post& post = control_.channel(r, lane_).posts[parity_];
      Seen& seen = workspace.seen[static_cast<std::size_t>(r)];
      if (!seen.inlined) {
        seen.send = arena_.at(post.send);
        seen.send_count = post.send_count;
      }
      seen.receive = arena_.at(post.receive);
      seen.receive_count = post.receive_count;
      const auto ranks = static_cast<std::size_t>(self.size);
      seen.send_counts = post.has_send_counts ? Counts(control_.row(r, lane_, parity_, 0), ranks) : Counts{};
      seen.receive_counts = post.has_receive_counts ? Counts(control_.row(r, lane_, parity_, 1), ranks) : Counts{};
      if (sends(call, r) && seen.send == nullptr) staged_ = true;
    }
    if constexpr (Call::name == "gather") staged_ = staged_ && peer(call.root).receive == nullptr;
    // In place among ranks of both kinds: nobody may read what its owner overwrites.
    late_ = staged_ && same_place && !peer(self.rank).inlined;
    if (late_)
      for (Seen& seen : workspace.seen) seen.send = nullptr;
    for (int r = 0; r < self.size; ++r)
      if (receives_reduced(r) && peer(r).receive == nullptr && !peer(r).inlined) results_ = true;
    if (results_) staged_ = true;  // what is reduced for them goes through stages
    if (!staged_) chunk_ = static_cast<std::size_t>(-1);
  }

  /// Everything that anybody reads lies in a slot: who has read it is done.
  [[nodiscard]] bool all_inlined() const noexcept { return all_inlined_; }
  /// Rounds that all ranks go through together.
  [[nodiscard]] std::size_t rounds() const noexcept {
    if (!staged_) return 1;
    std::size_t longest = 0;
    for (int from = 0; from < self.size; ++from)
      for (int to = 0; to < (blockwise<Call> ? self.size : 1); ++to)
        longest = std::max(longest, run_of(call, workspace.seen, from, to).bytes);
    return (longest + chunk_ - 1) / chunk_;
  }
  /// Whether ranks that had not thought so must show the first round too.
  [[nodiscard]] bool late() const noexcept { return late_; }
  /// Whether a rank that receives what others reduce is not reached by them.
  [[nodiscard]] bool has_results() const noexcept { return results_; }
  [[nodiscard]] bool staged() const noexcept { return staged_; }

  /// Shows what round `round` takes of this rank's memory.
  void stage(std::size_t round) noexcept {
    if (!sends(call, self.rank)) return;
    for (int to = 0; to < (blockwise<Call> ? self.size : 1); ++to) {
      const Run run = run_of(call, workspace.seen, self.rank, to);
      const std::size_t begin = std::min(run.bytes, round * chunk_), bytes = std::min(run.bytes - begin, chunk_);
      const std::byte* const from = own_send_ + run.offset + begin;
      std::byte* const shown = control_.stage(self.rank, lane_, round);
      // What this rank takes of itself it takes from where it is.
      if constexpr (Call::name == "all_reduce" || Call::name == "reduce") {
        const Run own = slice_of(bytes, self.rank, self.size);
        const std::size_t end = own.offset + own.bytes;
        copy_bytes(shown, from, own.offset);
        copy_bytes(shown + end, from + end, bytes - end);
      } else if constexpr (blockwise<Call>) {
        if (to != self.rank) copy_bytes(shown + static_cast<std::size_t>(to) * chunk_, from, bytes);
      } else {
        copy_bytes(shown, from, bytes);
      }
    }
  }
  /// Whether this rank shows round after round.
  [[nodiscard]] bool shows() const noexcept { return staged_ && (late_ || hidden_); }

  /// Where what `from` sends to `to` in a round begins, in this rank's address space.
  [[nodiscard]] const std::byte* source(int from, int to, std::size_t round) const noexcept {
    const std::size_t begin = staged_ ? round * chunk_ : 0;
    if (from == self.rank) return own_send_ + run_of(call, workspace.seen, from, to).offset + begin;
    if (peer(from).send != nullptr) return peer(from).send + run_of(call, workspace.seen, from, to).offset + begin;
    return control_.stage(from, lane_, round) + static_cast<std::size_t>(blockwise<Call> ? to : 0) * chunk_;
  }
  /// And how many bytes that is.
  [[nodiscard]] std::size_t piece(int from, int to, std::size_t round) const noexcept {
    const std::size_t bytes = run_of(call, workspace.seen, from, to).bytes;
    return std::min(bytes - std::min(bytes, offset(round)), chunk_);
  }
  /// Bytes of a run that the rounds before take.
  [[nodiscard]] std::size_t offset(std::size_t round) const noexcept { return staged_ ? round * chunk_ : 0; }
  [[nodiscard]] std::byte* stage_of(int r, std::size_t round) const noexcept { return control_.stage(r, lane_, round); }
  [[nodiscard]] std::byte* own_receive() const noexcept { return own_receive_; }
  /// Whether rank r receives what all ranks reduce slice by slice.
  [[nodiscard]] bool receives_reduced(int r) const noexcept {
    if constexpr (Call::name == "all_reduce")
      return r >= 0;
    else if constexpr (Call::name == "reduce")
      return r == call.root;
    else
      return false;
  }

  void reduce(std::size_t offset_bytes, std::size_t bytes, std::size_t round)
    requires is_reduction<Call>
  {
    workspace.sources.clear();
    for (int r = 0; r < self.size; ++r) workspace.sources.push_back(source(r, self.rank, round) + offset_bytes);
    call.op.reduce(workspace.targets.data(), workspace.targets.size(), workspace.sources.data(),
                   workspace.sources.size(), bytes / width_of(call), self.size);
  }

  static void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
    if (bytes != 0 && to != from) std::memcpy(to, from, bytes);
  }

 private:
  /// Where a rank shows what is small.
  [[nodiscard]] std::byte* inlined(int r, Summary& summary) const noexcept {
    return summary.shown == Summary::Shown::here ? summary.tiny : control_.inlined(r, lane_, parity_);
  }
  bool publish_counts(Counts counts, std::size_t side) noexcept {
    std::copy(counts.begin(), counts.end(), control_.row(self.rank, lane_, parity_, side));
    return !counts.empty();
  }
  [[nodiscard]] std::size_t stage_share() const noexcept {
    return control_.extent().stage_bytes / static_cast<std::size_t>(self.size) / alignment_bytes * alignment_bytes;
  }

  Arena& arena_;
  const Control& control_;
  Lane lane_;
  std::size_t parity_ = 0;
  std::size_t chunk_ = 0;
  const std::byte* own_send_ = nullptr;
  std::byte* own_receive_ = nullptr;
  bool hidden_ = false;
  bool staged_ = false;
  bool late_ = false;
  bool results_ = false;
  bool all_inlined_ = false;
};

}  // namespace distx::shared_memory
