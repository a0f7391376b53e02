// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "distx/comm/runtime/peer_views.hpp"
#include "distx/memory/buffer.hpp"
#include "distx/mpi/detail/carrier.hpp"
#include "distx/mpi/detail/check.hpp"
#include "distx/mpi/detail/pulse.hpp"

namespace distx::detail::mpi {

/// Transfers the operands of large collectives by nonblocking messages, and reduces them in rank order.
///
/// MPI accesses this object's staging memory only, never the user's: a call can be ended at any time, by a deadline or
/// a revocation, and the user's memory may be released afterwards. Every rank sends directly to every other one.
///
/// A call is made in pieces that are small enough for the caches and for MPI's eager protocol over TCP. Several are in
/// flight, so the link is busy while this rank reduces, copies or does not poll. `all_reduce`, `reduce` and `broadcast`
/// have two stages, and rank r owns slice r of every piece: a reduce-scatter (or scatter) is followed by an all-gather
/// (or gather), so that each rank sends 2(N-1)/N of the buffer. Results have the same bits as those of ranks that share
/// memory.
class Schedule {
 public:
  /// @param carrier  has no other messages with the tags that are passed to `run`
  Schedule(Carrier carrier, const calls::RankOf& self)
      : carrier_(std::move(carrier)),
        self_(self),
        ranks_(static_cast<std::size_t>(self.size)),
        slice_bytes_(std::clamp<std::size_t>(most_staged / (window * ranks_) / 64 * 64, 8192, most_eager)),
        requests_(window * 4 * ranks_, MPI_REQUEST_NULL) {}
  Schedule(const Schedule&) = delete;
  Schedule& operator=(const Schedule&) = delete;

  /// Executes a call that all ranks have joined and whose sizes agree. Collective.
  /// @param tag  of the messages; the second stage uses the next tag
  /// @param wait  `wait(test)` returns once `test()` returns true, and throws if that takes too long
  template <class Wait>
  void run(const Call<Host>& c, const std::vector<detail::PeerView>& peers, int tag, const ErrorContext& context,
           Wait&& wait) {
    using enum calls::CollectiveKind;
    if (staging_.size() == 0) staging_ = Buffer<std::byte>(window * 3 * ranks_ * slice_bytes_);
    tag_ = tag;
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
        const auto waits = [&](PieceMessage kind) {
          int complete = 0;
          return MPI_Request_get_status(*request(piece, kind, r), &complete, MPI_STATUS_IGNORE) != MPI_SUCCESS ||
                 complete == 0;
        };
        // In the first stage, nobody sends messages of the second.
        const bool second = piece < combined_ && (waits(second_in) || waits(second_out));
        if (second || waits(first_in) || waits(first_out)) ranks.push_back(r);
      }
    return ranks;
  }
  /// Cancels the receives and gives the sends a moment to complete; returns whether MPI is done with this object.
  [[nodiscard]] bool abandon() noexcept {
    for (std::size_t piece = 0; piece < window; ++piece)
      for (const auto kind : {first_in, second_in})
        for (int r = 0; r < self_.size; ++r)
          if (auto* const receive = request(piece, kind, r); *receive != MPI_REQUEST_NULL) MPI_Cancel(receive);
    const auto over = [this] {
      int complete = 0;
      return MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &complete, MPI_STATUSES_IGNORE) !=
                 MPI_SUCCESS ||
             complete != 0;
    };
    return watched_wait_until(std::chrono::milliseconds(100), self_, over, [] { return false; }) ==
           detail::WaitEnd::ready;
  }

 private:
  static constexpr std::size_t window = 4;                          ///< pieces in flight
  static constexpr std::size_t most_staged = std::size_t{1} << 20;  ///< bytes in flight in a stage, about
  /// The bytes of a message at most: Open MPI sends 64 KiB with its header over TCP without asking the receiver.
  static constexpr std::size_t most_eager = 60 << 10;

  /// The messages of a piece, by stage and direction; a piece has one of each kind with each rank at most.
  enum PieceMessage : std::size_t { first_in, second_in, first_out, second_out };

  /// Elements of one rank in one piece.
  struct Slice {
    std::size_t offset = 0;
    std::size_t count = 0;
  };

  [[nodiscard]] static std::size_t at(int rank) noexcept { return static_cast<std::size_t>(rank); }
  [[nodiscard]] MPI_Request* request(std::size_t piece, PieceMessage kind, int party) noexcept {
    return &requests_[(piece % window * 4 + kind) * ranks_ + at(party)];
  }
  /// Returns the memory of a received message, or of one of the first stage to be sent. The second stage's message is
  /// the same to all, and takes the place of the message to this rank.
  [[nodiscard]] std::byte* staged(std::size_t piece, PieceMessage kind, int party) noexcept {
    return staging_.data() + ((piece % window * 3 + kind) * ranks_ + at(party)) * slice_bytes_;
  }
  /// Calls `f` with each other rank, beginning after this one, so that not all send to the same rank first.
  template <class F>
  void with_others(F&& f) const {
    for (int step = 1; step < self_.size; ++step) f((self_.rank + step) % self_.size);
  }

  void post_receive(std::size_t piece, PieceMessage kind, int from, std::size_t bytes, const ErrorContext& context) {
    if (bytes == 0) return;
    check(MPI_Irecv(staged(piece, kind, from), static_cast<int>(bytes), MPI_BYTE, carrier_[from], tag_of(kind),
                    carrier_.comm, request(piece, kind, from)),
          "MPI_Irecv", context);
  }
  void post_send(std::size_t piece, PieceMessage kind, int to, const std::byte* from, std::size_t bytes,
                 const ErrorContext& context) {
    if (bytes == 0) return;
    check(MPI_Isend(from, static_cast<int>(bytes), MPI_BYTE, carrier_[to], tag_of(kind), carrier_.comm,
                    request(piece, kind, to)),
          "MPI_Isend", context);
  }
  /// Sends a copy of the caller's bytes.
  void post_copy(std::size_t piece, int to, const std::byte* from, std::size_t bytes, const ErrorContext& context) {
    detail::copy_bytes(staged(piece, first_out, to), from, bytes);
    post_send(piece, first_out, to, staged(piece, first_out, to), bytes, context);
  }
  [[nodiscard]] int tag_of(PieceMessage kind) const noexcept {
    return kind == first_in || kind == first_out ? tag_ : tag_ + 1;
  }
  /// Returns whether the messages of `kinds` kinds, from `kind` on, are complete.
  [[nodiscard]] bool are_complete(std::size_t piece, PieceMessage kind, std::size_t kinds,
                                  const ErrorContext& context) {
    int complete = 0;
    check(MPI_Testall(static_cast<int>(kinds * ranks_), request(piece, kind, 0), &complete, MPI_STATUSES_IGNORE),
          "MPI_Testall", context);
    return complete != 0;
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

  /// Reduces the ranks' messages of the first stage with this rank's operand, in rank order.
  void reduce_piece(const Call<Host>& c, std::size_t piece, Slice own, void* const* targets, std::size_t target_count) {
    sources_.clear();
    for (int r = 0; r < self_.size; ++r)
      sources_.push_back(r == self_.rank ? c.send.bytes() + own.offset * detail::element_width(c)
                                         : staged(piece, first_in, r));
    c.op.reduce(targets, target_count, sources_.data(), sources_.size(), own.count, self_.size);
  }

  template <class Wait>
  void in_two_stages(const Call<Host>& c, const ErrorContext& context, Wait&& wait) {
    const bool reduces = detail::traits_of(c.kind).reduces, to_all = c.kind != calls::CollectiveKind::reduce;
    const std::size_t width = detail::element_width(c), most = slice_bytes_ / width, total = c.send.size();
    const int root = c.root;
    std::byte* const result = c.receive.bytes();
    const int me = self_.rank;
    const bool receives = to_all || me == root;
    const bool gets = receives && (reduces || me != root);  // the root of a broadcast has all slices
    // Pieces of equal size, in multiples of 16 elements, except for the last one.
    const auto divide = [](std::size_t a, std::size_t b) { return (a + b - 1) / b; };
    const std::size_t share = std::min(most, divide(divide(total, divide(total, most * ranks_) * ranks_), 16) * 16);
    const auto slice = [&](std::size_t piece, int r) {
      const std::size_t begin = piece * share * ranks_, count = std::min(share * ranks_, total - begin),
                        each = divide(count, ranks_), start = std::min(count, at(r) * each);
      return Slice{begin + start, std::min(each, count - start)};
    };

    const auto post = [&](std::size_t piece) {
      const std::size_t mine = slice(piece, me).count * width;
      with_others([&](int r) {
        if (reduces || r == root) post_receive(piece, first_in, r, mine, context);
        if (gets) post_receive(piece, second_in, r, slice(piece, r).count * width, context);
      });
      with_others([&](int r) {
        const Slice sent = slice(piece, r);
        if (reduces)
          post_copy(piece, r, c.send.bytes() + sent.offset * width, sent.count * width, context);
        else if (me == root)
          post_copy(piece, r, result + sent.offset * width, sent.count * width, context);
      });
    };
    const auto combine = [&](std::size_t piece) {
      const Slice own = slice(piece, me);
      if (own.count == 0) return;
      std::byte* from = staged(piece, first_out, me);
      if (reduces) {
        void* const targets[]{receives ? result + own.offset * width : from, from};
        reduce_piece(c, piece, own, targets, receives && to_all ? 2 : 1);
      } else if (me == root) {
        std::memcpy(from, result + own.offset * width, own.count * width);
      } else {
        from = staged(piece, first_in, root);
        std::memcpy(result + own.offset * width, from, own.count * width);
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
        detail::copy_bytes(result + other.offset * width, staged(piece, second_in, r), other.count * width);
      });
    };
    run_pieces(divide(total, share * ranks_), context, wait, post, combine, finish);
  }

  /// Reduces block r on rank r.
  template <class Wait>
  void reduce_blocks(const Call<Host>& c, const ErrorContext& context, Wait&& wait) {
    const std::size_t width = detail::element_width(c), most = slice_bytes_ / width;
    std::size_t longest = 0;
    for (int r = 0; r < self_.size; ++r) longest = std::max(longest, calls::block_count(c.counts, c.receive.size(), r));
    const auto slice = [&](std::size_t piece, int r) {
      const std::size_t whole = calls::block_count(c.counts, c.receive.size(), r),
                        start = std::min(piece * most, whole);
      return Slice{calls::block_offset(c.counts, c.receive.size(), r) + start, std::min(most, whole - start)};
    };
    const auto post = [&](std::size_t piece) {
      with_others([&](int r) { post_receive(piece, first_in, r, slice(piece, self_.rank).count * width, context); });
      with_others([&](int r) {
        const Slice sent = slice(piece, r);
        post_copy(piece, r, c.send.bytes() + sent.offset * width, sent.count * width, context);
      });
    };
    const auto combine = [&](std::size_t piece) {
      const Slice own = slice(piece, self_.rank);
      if (own.count == 0) return;
      void* const target = c.receive.bytes() + piece * most * width;
      reduce_piece(c, piece, own, &target, 1);
    };
    run_pieces((longest + most - 1) / most, context, wait, post, combine, [](std::size_t) {});
  }

  /// Transfers one block from each rank to each rank.
  template <class Wait>
  void move_blocks(const Call<Host>& c, const std::vector<detail::PeerView>& peers, const ErrorContext& context,
                   Wait&& wait) {
    using enum calls::CollectiveKind;
    const std::size_t width = detail::element_width(c);
    const int me = self_.rank;
    const bool receives = c.kind != gather || me == c.root;
    // The place of rank r's block in this rank's `receive`.
    const auto place = [&](int r) -> std::byte* {
      if (c.kind == scatter) return c.receive.bytes();
      const bool all = c.kind == all_to_all;
      const std::size_t equal = all ? c.send.size() / ranks_ : c.send.size();
      return c.receive.bytes() + calls::block_offset(all ? c.receive_counts : c.counts, equal, r) * width;
    };
    const auto sent_to = [&](int r) {
      if (c.kind == gather && r != c.root) return detail::ByteRange{};
      return detail::range_of(c, peers, me, r);
    };
    const auto received_from = [&](int r) { return receives ? detail::range_of(c, peers, r, me).bytes : 0; };
    std::size_t longest = 0;
    with_others([&](int r) { longest = std::max({longest, sent_to(r).bytes, received_from(r)}); });
    const auto part = [&](std::size_t whole, std::size_t piece) {
      return std::min(slice_bytes_, whole - std::min(piece * slice_bytes_, whole));
    };
    if (const auto own = sent_to(me); receives && own.bytes != 0)
      detail::copy_bytes(place(me), c.send.bytes() + own.offset, own.bytes);
    const auto post = [&](std::size_t piece) {
      with_others([&](int r) { post_receive(piece, first_in, r, part(received_from(r), piece), context); });
      const std::byte* copied = nullptr;  // consecutive sends of the same bytes share one copy
      std::byte* copy = nullptr;
      with_others([&](int r) {
        const auto range = sent_to(r);
        const std::size_t bytes = part(range.bytes, piece);
        if (bytes == 0) return;
        const std::byte* const from = c.send.bytes() + range.offset + piece * slice_bytes_;
        if (from != std::exchange(copied, from)) {
          copy = staged(piece, first_out, r);
          std::memcpy(copy, from, bytes);
        }
        post_send(piece, first_out, r, copy, bytes, context);
      });
    };
    const auto combine = [&](std::size_t piece) {
      with_others([&](int r) {
        const std::size_t bytes = part(received_from(r), piece);
        if (bytes != 0) std::memcpy(place(r) + piece * slice_bytes_, staged(piece, first_in, r), bytes);
      });
    };
    run_pieces((longest + slice_bytes_ - 1) / slice_bytes_, context, wait, post, combine, [](std::size_t) {});
  }

  Carrier carrier_;
  calls::RankOf self_;
  std::size_t ranks_;
  std::size_t slice_bytes_;            ///< of a message, at most
  Buffer<std::byte> staging_;          ///< allocated by the first large call
  std::vector<MPI_Request> requests_;  ///< by piece, kind and rank
  std::vector<const void*> sources_;
  std::size_t begun_ = 0, combined_ = 0, finished_ = 0;  ///< pieces of the call
  int tag_ = 0;
};

}  // namespace distx::detail::mpi
