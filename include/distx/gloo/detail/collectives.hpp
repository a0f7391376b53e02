// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/runtime/call_description.hpp"
#include "distx/gloo/detail/links.hpp"
#include "distx/memory/buffer.hpp"

namespace distx::detail {

/// Makes the collectives of one queue, blocking or asynchronous, one after the other.
///
/// Each rank sends every other one a description of its call, with the operand if that is small. After they are
/// compared, larger operands are transferred directly between the ranks' memory; a reduction is a reduce-scatter,
/// followed by an all-gather or a gather, so each rank sends 2(N-1)/N of the buffer. Operands are reduced in rank
/// order.
class GlooCollectives {
 public:
  /// @param kind  `blocking` or `started`
  GlooCollectives(GlooLinks& links, GlooSlot kind)
      : links_(links),
        self_(links.self()),
        kind_(kind),
        capacity_(sizeof(CallDescription) + 2 * ranks() * sizeof(std::size_t) + most_inlined),
        blocks_(capacity_ * ranks()),
        views_(ranks()) {}

  void run(const Call<Host>& call) {
    const ErrorContext context = self_.context(call);
    const std::uint64_t number = calls_++;
    const std::size_t bytes = CallDescription::write(call, self_.rank, most_inlined, true, block(self_.rank));
    GlooStep step(links_, slot_of(kind_, number), context);
    for (int other = 0; other < self_.size; ++other) step.receive(other, block(other), capacity_);
    for (int other = 0; other < self_.size; ++other) step.send(other, block(self_.rank), bytes);
    step.complete("did not join");
    const auto message = [this](std::size_t rank) { return block(static_cast<int>(rank)); };
    compare_descriptions(call, block(self_.rank), message, views_, true, context);
    if (all_inlined(call, views_)) return complete_inlined(call, self_, views_, sources_);
    const auto data = static_cast<GlooSlot>(static_cast<std::uint64_t>(kind_) + 1);
    transfer(call, GlooStep(links_, slot_of(data, number), context));
  }

 private:
  static constexpr std::size_t most_inlined = 2048;                 ///< bytes
  static constexpr std::size_t most_staged = std::size_t{4} << 20;  ///< bytes that a rank receives in a round
  static constexpr const char* late = "did not continue the call";

  [[nodiscard]] std::size_t ranks() const noexcept { return static_cast<std::size_t>(self_.size); }
  [[nodiscard]] std::byte* block(int rank) { return blocks_.data() + static_cast<std::size_t>(rank) * capacity_; }

  /// A part of a buffer, in elements.
  struct BlockPart {
    std::size_t offset = 0, count = 0;
  };
  /// Returns rank `rank`'s share of `total` elements.
  [[nodiscard]] BlockPart share_of(std::size_t total, int rank) const noexcept {
    const std::size_t share = (total + ranks() - 1) / ranks(), begin = static_cast<std::size_t>(rank) * share;
    return {std::min(total, begin), std::min(total, begin + share) - std::min(total, begin)};
  }

  void transfer(const Call<Host>& c, GlooStep step) {
    using enum CollectiveKind;
    const int me = self_.rank;
    if (c.kind == reduce_scatter) {
      const auto part = [&](int r) {
        return BlockPart{block_offset(c.counts, c.receive.size(), r), block_count(c.counts, c.receive.size(), r)};
      };
      reduce_parts(c, step, part, c.receive.bytes());
    } else if (c.kind == all_reduce || c.kind == reduce) {
      const bool receives = c.kind == all_reduce || me == c.root;
      const auto part = [&](int r) { return share_of(c.send.size(), r); };
      const std::size_t width = element_width(c), bytes = part(me).count * width;
      if (!receives && reduced_.size() < bytes) reduced_ = Buffer<std::byte>(bytes);
      std::byte* const own = receives ? c.receive.bytes() + part(me).offset * width : reduced_.data();
      reduce_parts(c, step, part, own);
      for (int r = 0; r < self_.size; ++r) {
        if (receives) step.receive(r, c.receive.bytes() + part(r).offset * width, part(r).count * width);
        if (c.kind == all_reduce || r == c.root) step.send(r, own, bytes);
      }
      step.complete(late);
    } else if (c.kind == broadcast) {
      const auto at = [&](int r) {
        return c.receive.bytes() + share_of(c.receive.size(), r).offset * element_width(c);
      };
      const auto bytes = [&](int r) { return share_of(c.receive.size(), r).count * element_width(c); };
      if (me != c.root) step.receive(c.root, at(me), bytes(me));
      for (int r = 0; me == c.root && r < self_.size; ++r) step.send(r, at(r), bytes(r));
      step.complete(late);
      for (int r = 0; r < self_.size; ++r) {
        if (me != c.root) step.receive(r, at(r), bytes(r));
        if (r != c.root) step.send(r, at(me), bytes(me));
      }
      step.complete(late);
    } else if (c.kind != barrier) {
      move_blocks(c, step);
    }
  }
  /// Reduces part `part_of(r)` of all ranks' `send` on rank r, in rounds. @param target  where this rank's part goes
  template <class F>
  void reduce_parts(const Call<Host>& c, GlooStep& step, F part_of, std::byte* target) {
    const std::size_t width = element_width(c), per_round = std::max<std::size_t>(1, most_staged / width / ranks());
    std::size_t longest = 0;
    for (int r = 0; r < self_.size; ++r) longest = std::max(longest, part_of(r).count);
    const std::size_t room = std::min(longest, per_round) * width;
    if (staging_.size() < room * ranks()) staging_ = Buffer<std::byte>(room * ranks());
    for (std::size_t done = 0; done < longest; done += per_round) {
      const auto now = [&](int r) {
        const BlockPart whole = part_of(r);
        const std::size_t start = std::min(done, whole.count);
        return BlockPart{whole.offset + start, std::min(per_round, whole.count - start)};
      };
      const std::size_t mine = now(self_.rank).count;
      sources_.clear();
      for (int r = 0; r < self_.size; ++r) {
        std::byte* const place = staging_.data() + static_cast<std::size_t>(r) * room;
        step.receive(r, place, mine * width);
        sources_.push_back(r == self_.rank ? c.send.bytes() + now(r).offset * width : place);
      }
      for (int r = 0; r < self_.size; ++r) step.send(r, c.send.bytes() + now(r).offset * width, now(r).count * width);
      step.complete(late);
      if (mine == 0) continue;
      void* const result = target + done * width;
      c.op.reduce(&result, 1, sources_.data(), sources_.size(), mine, self_.size);
    }
  }
  /// Transfers one block from each rank to each rank.
  void move_blocks(const Call<Host>& c, GlooStep& step) {
    using enum CollectiveKind;
    const int me = self_.rank;
    const std::byte* from = c.send.bytes();
    if (c.kind == all_to_all && from == c.receive.bytes()) {  // what arrives must not overwrite what leaves
      if (staging_.size() < c.send.size_bytes()) staging_ = Buffer<std::byte>(c.send.size_bytes());
      copy_bytes(staging_.data(), from, c.send.size_bytes());
      from = staging_.data();
    }
    for (int r = 0; r < self_.size; ++r) {
      std::size_t at = 0;
      if (c.kind == all_to_all)
        at = block_offset(c.receive_counts, c.send.size() / ranks(), r) * element_width(c);
      else if (c.kind != scatter)
        at = block_offset(c.counts, c.send.size(), r) * element_width(c);
      std::byte* const place = c.receive.empty() ? nullptr : c.receive.bytes() + at;  // a rank may receive nothing
      ByteRange in = range_of(c, views_, r, me), out = range_of(c, views_, me, r);
      if (c.kind == gather) {
        if (me != c.root) in = {};
        if (r != c.root) out = {};
      }
      step.receive(r, place, in.bytes);
      step.send(r, from + out.offset, out.bytes);
      if (r == me) copy_bytes(place, from + out.offset, std::min(in.bytes, out.bytes));
    }
    step.complete(late);
  }

  GlooLinks& links_;
  RankOf self_;
  GlooSlot kind_;
  std::uint64_t calls_ = 0;
  std::size_t capacity_;                 ///< bytes of the longest description
  Buffer<std::byte> blocks_;             ///< the ranks' descriptions
  Buffer<std::byte> staging_, reduced_;  ///< allocated by the first call that needs them
  std::vector<PeerView> views_;
  std::vector<const void*> sources_;
};

}  // namespace distx::detail
