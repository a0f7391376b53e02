// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "distx/comm/messages/message_transport.hpp"
#include "distx/comm/runtime/peer_views.hpp"
#include "distx/memory/buffer.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Transfers the operands of large collectives by messages, and reduces them in rank order. Every rank sends directly
/// to every other one.
///
/// A staged transport accesses this object's memory only, never the user's: a call can be ended at any time, by a
/// deadline or a revocation, and the user's memory may be released afterwards. Other transports receive into the user's
/// memory, except for the operands of a reduction.
///
/// A call is made in pieces, of which several are in flight, so the link is busy while this rank reduces, copies or
/// does not poll. `all_reduce`, `reduce` and `broadcast` have two stages, and rank r owns slice r of every piece: a
/// reduce-scatter (or scatter) is followed by an all-gather (or gather), so that each rank sends 2(N-1)/N of the
/// buffer. Results have the same bits as those of ranks that share memory.
template <MessageTransport T>
class PiecewiseTransfer {
 public:
  PiecewiseTransfer(T& transport, const RankOf& self)
      : transport_(transport),
        self_(self),
        ranks_(static_cast<std::size_t>(self.size)),
        slice_bytes_(T::slice_bytes(ranks_)),
        requests_(window * 4 * ranks_) {
    std::ranges::generate(requests_, T::no_request);
  }
  PiecewiseTransfer(const PiecewiseTransfer&) = delete;
  PiecewiseTransfer& operator=(const PiecewiseTransfer&) = delete;

  /// Executes a call that all ranks have joined and whose sizes agree. Collective.
  /// @param wait  `wait(test)` returns once `test()` returns true, and throws if that takes too long
  template <class Wait>
  void run(const Call<Host>& c, const std::vector<PeerView>& peers, std::uint64_t number, const ErrorContext& context,
           Wait&& wait) {
    using enum CollectiveKind;
    if (staging_.size() == 0) staging_ = Buffer<std::byte>(window * 3 * ranks_ * slice_bytes_, uninitialized);
    tags_[0] = transport_.tag(MessageStage::first, number);
    tags_[1] = transport_.tag(MessageStage::second, number);
    if (c.kind == all_reduce || c.kind == reduce || c.kind == broadcast)
      in_two_stages(c, context, wait);
    else if (c.kind == reduce_scatter)
      reduce_blocks(c, context, wait);
    else
      move_blocks(c, peers, context, wait);
  }

  /// Returns the ranks that the oldest piece in flight waits for.
  [[nodiscard]] std::vector<int> missing() {
    std::vector<int> ranks;
    for (std::size_t piece = finished_; piece < begun_ && ranks.empty(); ++piece)
      for (int r = 0; r < self_.size; ++r) {
        const auto waits = [&](PieceMessage kind) { return !transport_.is_complete(*request(piece, kind, r)); };
        // In the first stage, nobody sends messages of the second.
        const bool second = piece < combined_ && (waits(second_in) || waits(second_out));
        if (second || waits(first_in) || waits(first_out)) ranks.push_back(r);
      }
    return ranks;
  }
  /// Gives the messages up; returns whether the transport has stopped to use their memory.
  [[nodiscard]] bool abandon() noexcept {
    for (std::size_t piece = 0; piece < window; ++piece)
      transport_.cancel({request(piece, first_in, 0), 2 * ranks_});  // and second_in
    return transport_.release(requests_);
  }

 private:
  using Request = typename T::Request;
  static constexpr std::size_t window = 4;  ///< pieces in flight

  /// The messages of a piece, by stage and direction; a piece has one of each kind with each rank at most.
  enum PieceMessage : std::size_t { first_in, second_in, first_out, second_out };

  /// Elements of one rank in one piece.
  struct Slice {
    std::size_t offset = 0;
    std::size_t count = 0;
  };

  [[nodiscard]] static std::size_t at(int rank) noexcept { return static_cast<std::size_t>(rank); }
  [[nodiscard]] static std::size_t divide(std::size_t a, std::size_t b) noexcept { return a / b + (a % b != 0); }
  [[nodiscard]] Request* request(std::size_t piece, PieceMessage kind, int rank) noexcept {
    return &requests_[(piece % window * 4 + kind) * ranks_ + at(rank)];
  }
  /// Returns the memory of a received message, or of one of the first stage to be sent. The second stage's message is
  /// the same to all, and takes the place of the message to this rank.
  [[nodiscard]] std::byte* staged(std::size_t piece, PieceMessage kind, int rank) noexcept {
    return staging_.data() + ((piece % window * 3 + kind) * ranks_ + at(rank)) * slice_bytes_;
  }
  /// Calls `f` with each other rank, beginning after this one, so that not all send to the same rank first.
  template <class F>
  void with_others(F&& f) const {
    for (int step = 1; step < self_.size; ++step) f((self_.rank + step) % self_.size);
  }

  /// Receives to `target`, or to staging memory if the transport is staged; `take` copies it from there.
  void post_receive(std::size_t piece, PieceMessage kind, int from, std::byte* target, std::size_t bytes,
                    const ErrorContext& context) {
    if (bytes == 0) return;
    transport_.receive(from, tag_of(kind), T::staged ? staged(piece, kind, from) : target, bytes,
                       *request(piece, kind, from), context);
  }
  void take(std::size_t piece, PieceMessage kind, int from, std::byte* target, std::size_t bytes) {
    if constexpr (T::staged) copy_bytes(target, staged(piece, kind, from), bytes);
  }
  void post_send(std::size_t piece, PieceMessage kind, int to, const std::byte* from, std::size_t bytes,
                 const ErrorContext& context) {
    if (bytes != 0) transport_.send(to, tag_of(kind), from, bytes, *request(piece, kind, to), context);
  }
  /// Sends the caller's bytes, or a copy of them if the transport is staged.
  void post_own(std::size_t piece, int to, const std::byte* from, std::size_t bytes, const ErrorContext& context) {
    if constexpr (T::staged) {
      copy_bytes(staged(piece, first_out, to), from, bytes);
      from = staged(piece, first_out, to);
    }
    post_send(piece, first_out, to, from, bytes, context);
  }
  [[nodiscard]] typename T::Tag tag_of(PieceMessage kind) const noexcept {
    return tags_[kind == first_in || kind == first_out ? 0 : 1];
  }
  /// Returns whether the messages of `kinds` kinds, from `kind` on, are complete.
  [[nodiscard]] bool are_complete(std::size_t piece, PieceMessage kind, std::size_t kinds,
                                  const ErrorContext& context) {
    return transport_.test({request(piece, kind, 0), kinds * ranks_}, context);
  }

  /// Makes a call in pieces: `post(p)` starts messages of piece p, `combine(p)` takes what the first stage received
  /// and starts the sends of the second, `finish(p)` takes what the second received; each in the order of the pieces.
  template <class Wait, class Post, class Combine, class Finish>
  void run_pieces(std::size_t pieces, const ErrorContext& context, Wait&& wait, Post&& post, Combine&& combine,
                  Finish&& finish) {
    begun_ = combined_ = finished_ = 0;
    while (finished_ < pieces) {
      for (; begun_ < std::min(pieces, finished_ + window); ++begun_) post(begun_);
      bool first = false, second = false;
      wait([&] {
        first = combined_ < begun_ && are_complete(combined_, first_in, 1, context);
        second = finished_ < combined_ && are_complete(finished_, second_in, 3, context);
        return first || second;
      });
      if (first) combine(combined_++);
      if (second) finish(finished_++);
    }
  }

  void post_operand(std::size_t piece, int from, std::size_t bytes, const ErrorContext& context) {
    post_receive(piece, first_in, from, staged(piece, first_in, from), bytes, context);
  }
  /// Reduces the ranks' messages of the first stage with this rank's operand, in rank order.
  void reduce_piece(const Call<Host>& c, std::size_t piece, Slice own, void* const* targets, std::size_t target_count) {
    sources_.clear();
    for (int r = 0; r < self_.size; ++r)
      sources_.push_back(r == self_.rank ? c.send.bytes() + own.offset * element_width(c) : staged(piece, first_in, r));
    c.op.reduce(targets, target_count, sources_.data(), sources_.size(), own.count, self_.size);
  }

  template <class Wait>
  void in_two_stages(const Call<Host>& c, const ErrorContext& context, Wait&& wait) {
    const bool reduces = traits_of(c.kind).reduces, to_all = c.kind != CollectiveKind::reduce;
    const std::size_t width = reduces ? element_width(c) : 1, most = slice_bytes_ / width,
                      total = c.send.size_bytes() / width;
    const int root = c.root;
    std::byte* const result = c.receive.bytes();
    const int me = self_.rank;
    const bool receives = to_all || me == root;
    const bool gets = receives && (reduces || me != root);  // the root of a broadcast has all slices
    // Pieces of equal size, in multiples of 16 elements, except for the last one.
    const std::size_t share = std::min(most, divide(divide(total, divide(total, most * ranks_) * ranks_), 16) * 16);
    const auto slice = [&](std::size_t piece, int r) {
      const std::size_t begin = piece * share * ranks_, count = std::min(share * ranks_, total - begin),
                        each = divide(count, ranks_), start = std::min(count, at(r) * each);
      return Slice{begin + start, std::min(each, count - start)};
    };

    const auto post = [&](std::size_t piece) {
      const Slice mine = slice(piece, me);
      with_others([&](int r) {
        if (reduces)
          post_operand(piece, r, mine.count * width, context);
        else if (r == root)
          post_receive(piece, first_in, r, result + mine.offset * width, mine.count * width, context);
        const Slice theirs = slice(piece, r);
        if (gets) post_receive(piece, second_in, r, result + theirs.offset * width, theirs.count * width, context);
      });
      with_others([&](int r) {
        const Slice sent = slice(piece, r);
        if (reduces)
          post_own(piece, r, c.send.bytes() + sent.offset * width, sent.count * width, context);
        else if (me == root)
          post_own(piece, r, result + sent.offset * width, sent.count * width, context);
      });
    };
    const auto combine = [&](std::size_t piece) {
      const Slice own = slice(piece, me);
      if (own.count == 0) return;
      std::byte* const place = receives ? result + own.offset * width : staged(piece, first_out, me);
      const bool forwards = !reduces && me != root;
      std::byte* const from = !T::staged ? place
                              : forwards ? staged(piece, first_in, root)
                                         : staged(piece, first_out, me);
      if (reduces) {
        void* const targets[]{place, from};
        reduce_piece(c, piece, own, targets, place == from || !to_all ? 1 : 2);
      } else {
        copy_bytes(forwards ? place : from, forwards ? from : place, own.count * width);
      }
      with_others([&](int r) {
        if (to_all ? reduces || r != root : r == root)
          post_send(piece, second_out, r, from, own.count * width, context);
      });
    };
    const auto finish = [&](std::size_t piece) {
      if (!gets) return;
      with_others([&](int r) {
        const Slice other = slice(piece, r);
        take(piece, second_in, r, result + other.offset * width, other.count * width);
      });
    };
    run_pieces(divide(total, share * ranks_), context, wait, post, combine, finish);
  }

  /// Reduces block r on rank r.
  template <class Wait>
  void reduce_blocks(const Call<Host>& c, const ErrorContext& context, Wait&& wait) {
    const std::size_t width = element_width(c), most = slice_bytes_ / width;
    std::size_t longest = 0;
    for (int r = 0; r < self_.size; ++r) longest = std::max(longest, block_count(c.counts, c.receive.size(), r));
    const auto slice = [&](std::size_t piece, int r) {
      const std::size_t whole = block_count(c.counts, c.receive.size(), r), start = std::min(piece * most, whole);
      return Slice{block_offset(c.counts, c.receive.size(), r) + start, std::min(most, whole - start)};
    };
    const auto post = [&](std::size_t piece) {
      with_others([&](int r) { post_operand(piece, r, slice(piece, self_.rank).count * width, context); });
      with_others([&](int r) {
        const Slice sent = slice(piece, r);
        post_own(piece, r, c.send.bytes() + sent.offset * width, sent.count * width, context);
      });
    };
    const auto combine = [&](std::size_t piece) {
      const Slice own = slice(piece, self_.rank);
      if (own.count == 0) return;
      void* const target = c.receive.bytes() + piece * most * width;
      reduce_piece(c, piece, own, &target, 1);
    };
    run_pieces(divide(longest, most), context, wait, post, combine, [](std::size_t) {});
  }

  /// Transfers one block from each rank to each rank.
  template <class Wait>
  void move_blocks(const Call<Host>& c, const std::vector<PeerView>& peers, const ErrorContext& context, Wait&& wait) {
    using enum CollectiveKind;
    const std::size_t width = element_width(c),
                      most = T::staged ? slice_bytes_ : std::numeric_limits<std::size_t>::max();
    const int me = self_.rank;
    const bool receives = c.kind != gather || me == c.root;
    // The place of rank r's block in this rank's `receive`.
    const auto place = [&](int r) -> std::byte* {
      if (c.kind == scatter || c.receive.empty()) return c.receive.bytes();
      const bool all = c.kind == all_to_all;
      const std::size_t equal = all ? c.send.size() / ranks_ : c.send.size();
      return c.receive.bytes() + block_offset(all ? c.receive_counts : c.counts, equal, r) * width;
    };
    const auto sent_to = [&](int r) {
      if (c.kind == gather && r != c.root) return ByteRange{};
      return range_of(c, peers, me, r);
    };
    const auto received_from = [&](int r) { return receives ? range_of(c, peers, r, me).bytes : 0; };
    std::size_t longest = 0;
    with_others([&](int r) { longest = std::max({longest, sent_to(r).bytes, received_from(r)}); });
    const auto part = [&](std::size_t whole, std::size_t piece) {
      return std::min(most, whole - std::min(piece * most, whole));
    };
    const std::byte* from = c.send.bytes();
    if (!T::staged && c.kind == all_to_all && from == c.receive.bytes()) {  // receiving must not overwrite what is sent
      copy_ = Buffer<std::byte>(c.send.size_bytes(), uninitialized);
      copy_bytes(copy_.data(), from, c.send.size_bytes());
      from = copy_.data();
    }
    if (const auto own = sent_to(me); receives && own.bytes != 0) copy_bytes(place(me), from + own.offset, own.bytes);
    const auto post = [&](std::size_t piece) {
      with_others([&](int r) {
        post_receive(piece, first_in, r, place(r) + piece * most, part(received_from(r), piece), context);
      });
      const std::byte* copied = nullptr;  // consecutive sends of the same bytes share one copy
      std::byte* copy = nullptr;
      with_others([&](int r) {
        const auto range = sent_to(r);
        const std::size_t bytes = part(range.bytes, piece);
        if (bytes == 0) return;
        const std::byte* const sent = from + range.offset + piece * most;
        if (!T::staged) return post_send(piece, first_out, r, sent, bytes, context);
        if (sent != std::exchange(copied, sent)) {
          copy = staged(piece, first_out, r);
          std::memcpy(copy, sent, bytes);
        }
        post_send(piece, first_out, r, copy, bytes, context);
      });
    };
    const auto combine = [&](std::size_t piece) {
      with_others([&](int r) { take(piece, first_in, r, place(r) + piece * most, part(received_from(r), piece)); });
    };
    run_pieces(divide(longest, most), context, wait, post, combine, [](std::size_t) {});
    copy_ = {};
  }

  T& transport_;
  RankOf self_;
  std::size_t ranks_;
  std::size_t slice_bytes_;           ///< of a message, at most
  Buffer<std::byte> staging_, copy_;  ///< the first is allocated by the first large call
  std::vector<const void*> sources_;
  std::size_t begun_ = 0, combined_ = 0, finished_ = 0;  ///< pieces of the call
  typename T::Tag tags_[2]{};                            ///< by stage
  std::vector<Request> requests_;  ///< by piece, kind and rank; last: destroyed before the memory that they use
};

}  // namespace distx::inline DISTX_ABI::detail
