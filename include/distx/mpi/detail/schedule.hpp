// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstring>
#include <vector>

#include "distx/comm/runtime/peer_views.hpp"
#include "distx/core/detail/wait.hpp"
#include "distx/memory/buffer.hpp"
#include "distx/mpi/detail/check.hpp"

namespace distx::detail::mpi {

/// Transfers the operands of large collectives in steps of nonblocking messages, and reduces them in rank order.
///
/// MPI accesses this object's staging memory only, never the user's: a call can be ended at any time, by a deadline or
/// a revocation, and the user's memory may be released afterwards. A step is small enough for the caches, so the copies
/// cost little. Every rank sends directly to every other one. `all_reduce`, `reduce` and `broadcast` process the buffer
/// in rounds, in which rank r owns slice r: a reduce-scatter (or scatter) is followed by an all-gather (or gather), so
/// that each rank sends 2(N-1)/N of the buffer. Results have the same bits as those of ranks that share memory.
class Schedule {
 public:
  /// @param comm carries no other messages with the tags that are passed to `run`
  Schedule(MPI_Comm comm, const calls::RankOf& self)
      : comm_(comm),
        self_(self),
        ranks_(static_cast<std::size_t>(self.size)),
        step_bytes_(std::max<std::size_t>(most_staged / ranks_ / 64 * 64, 8192)),
        offsets_(ranks_),
        counts_(ranks_),
        received_(ranks_) {}
  Schedule(const Schedule&) = delete;
  Schedule& operator=(const Schedule&) = delete;

  /// Executes a call that all ranks have joined and whose sizes agree. Collective.
  /// @param wait  `wait(test)` returns once `test()` returns true, and throws if that takes too long
  template <calls::Collective Call, class Wait>
  void run(const Call& c, const std::vector<detail::PeerView>& peers, int tag, const ErrorContext& context,
           Wait&& wait) {
    using enum calls::CollectiveKind;
    if (staging_.size() == 0) staging_ = Buffer<std::byte>(2 * ranks_ * step_bytes_);
    tag_ = tag;
    if constexpr (Call::kind == all_reduce || Call::kind == reduce || Call::kind == broadcast) {
      in_rounds(c, context, wait);
    } else if constexpr (Call::kind == reduce_scatter) {
      const std::size_t per_step = step_bytes_ / detail::element_width(c);
      std::size_t longest = 0;
      for (int r = 0; r < self_.size; ++r)
        longest = std::max(longest, calls::block_count(c.counts, c.receive.size(), r));
      for (std::size_t done = 0; done < longest; done += per_step) {
        for (int r = 0; r < self_.size; ++r) {
          const std::size_t whole = calls::block_count(c.counts, c.receive.size(), r), start = std::min(done, whole);
          offsets_[at(r)] = calls::block_offset(c.counts, c.receive.size(), r) + start;
          counts_[at(r)] = std::min(per_step, whole - start);
        }
        reduce_slices(c, c.receive.bytes() + done * detail::element_width(c), context, wait);
      }
    } else {
      move_blocks(c, peers, context, wait);
    }
  }

  /// Returns the ranks that the step in progress waits for.
  [[nodiscard]] std::vector<int> missing() {
    std::vector<int> ranks;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      int complete = 0;
      if (MPI_Request_get_status(requests_[i], &complete, MPI_STATUS_IGNORE) == MPI_SUCCESS && complete != 0) continue;
      if (std::find(ranks.begin(), ranks.end(), parties_[i]) == ranks.end()) ranks.push_back(parties_[i]);
    }
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  }
  /// Cancels the receives and gives the sends a moment to complete; returns whether MPI is done with this object.
  [[nodiscard]] bool abandon() noexcept {
    for (std::size_t i = 0; i < requests_.size(); ++i)
      if (receives_[i] && requests_[i] != MPI_REQUEST_NULL) MPI_Cancel(&requests_[i]);
    const auto over = [this] {
      int complete = 0;
      return MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &complete, MPI_STATUSES_IGNORE) !=
                 MPI_SUCCESS ||
             complete != 0;
    };
    if (detail::wait_until(std::chrono::milliseconds(100), over, [] { return false; }) != detail::WaitEnd::ready)
      return false;
    clear();
    return true;
  }

 private:
  static constexpr std::size_t most_staged = std::size_t{1} << 20;  ///< bytes that a rank sends, or receives, in a step

  [[nodiscard]] static std::size_t at(int rank) noexcept { return static_cast<std::size_t>(rank); }

  void clear() noexcept {
    requests_.clear();
    parties_.clear();
    receives_.clear();
    used_ = 0;
    staged_from_ = nullptr;
  }
  std::byte* reserve(std::size_t bytes) noexcept {
    std::byte* const place = staging_.data() + used_;
    used_ += (bytes + 63) / 64 * 64;
    return place;
  }
  MPI_Request* request(int party, bool receives) {
    parties_.push_back(party);
    receives_.push_back(receives);
    return &requests_.emplace_back(MPI_REQUEST_NULL);
  }
  void post_receive(int from, std::size_t bytes, const ErrorContext& context) {
    received_[at(from)] = nullptr;
    if (bytes == 0) return;
    received_[at(from)] = reserve(bytes);
    check(MPI_Irecv(received_[at(from)], static_cast<int>(bytes), MPI_BYTE, from, tag_, comm_, request(from, true)),
          "MPI_Irecv", context);
  }
  /// Sends a copy of the bytes; consecutive sends of the same bytes share one copy.
  void post_send(int to, const std::byte* bytes, std::size_t count, const ErrorContext& context) {
    if (count == 0) return;
    if (bytes != staged_from_) {
      staged_ = reserve(count);
      std::memcpy(staged_, bytes, count);
      staged_from_ = bytes;
    }
    check(MPI_Isend(staged_, static_cast<int>(count), MPI_BYTE, to, tag_, comm_, request(to, false)), "MPI_Isend",
          context);
  }
  template <class Wait>
  void complete_step(const ErrorContext& context, Wait&& wait) {
    if (!requests_.empty())
      wait([&] {
        int complete = 0;
        check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &complete, MPI_STATUSES_IGNORE),
              "MPI_Testall", context);
        return complete != 0;
      });
    clear();
  }

  /// Reduces slice `counts_[r]` at `offsets_[r]` on rank r, from all ranks' `c.send`.
  /// @param target  where this rank's slice of the result is written
  template <class Call, class Wait>
  void reduce_slices(const Call& c, std::byte* target, const ErrorContext& context, Wait&& wait) {
    const std::size_t width = detail::element_width(c), mine = counts_[at(self_.rank)];
    for (int r = 0; r < self_.size; ++r)
      if (r != self_.rank) post_receive(r, mine * width, context);
    for (int r = 0; r < self_.size; ++r)
      if (r != self_.rank) post_send(r, c.send.bytes() + offsets_[at(r)] * width, counts_[at(r)] * width, context);
    complete_step(context, wait);
    if (mine == 0) return;
    sources_.clear();
    for (int r = 0; r < self_.size; ++r)
      sources_.push_back(r == self_.rank ? c.send.bytes() + offsets_[at(r)] * width : received_[at(r)]);
    void* const result = target;
    c.op.reduce(&result, 1, sources_.data(), sources_.size(), mine, self_.size);
  }

  template <class Call, class Wait>
  void in_rounds(const Call& c, const ErrorContext& context, Wait&& wait) {
    constexpr bool reduces = detail::CallTraits<Call>::reduces;
    const std::size_t width = detail::element_width(c), per_round = step_bytes_ / width * ranks_;
    const auto [total, to_all] = [&] {
      if constexpr (Call::kind == calls::CollectiveKind::broadcast)
        return std::pair(c.buffer.size(), true);
      else
        return std::pair(c.send.size(), Call::kind == calls::CollectiveKind::all_reduce);
    }();
    const int root = [&] {
      if constexpr (detail::CallTraits<Call>::rooted)
        return c.root;
      else
        return 0;
    }();
    const bool receives = to_all || self_.rank == root;
    if (reduces && !receives && own_slices_.size() == 0) own_slices_ = Buffer<std::byte>(step_bytes_);
    for (std::size_t done = 0; done < total; done += per_round) {
      const std::size_t count = std::min(per_round, total - done), share = (count + ranks_ - 1) / ranks_;
      for (std::size_t r = 0; r < ranks_; ++r) {
        const std::size_t begin = std::min(count, r * share);
        offsets_[r] = done + begin;
        counts_[r] = std::min(share, count - begin);
      }
      const std::size_t mine = counts_[at(self_.rank)] * width, start = offsets_[at(self_.rank)] * width;
      std::byte* own = nullptr;
      if constexpr (reduces) {
        own = receives ? c.receive.bytes() + start : own_slices_.data();
        reduce_slices(c, own, context, wait);
      } else {
        own = c.buffer.bytes() + start;
        if (self_.rank == root) {
          for (int r = 0; r < self_.size; ++r)
            if (r != root) post_send(r, c.buffer.bytes() + offsets_[at(r)] * width, counts_[at(r)] * width, context);
        } else {
          post_receive(root, mine, context);
        }
        complete_step(context, wait);
        if (self_.rank != root && mine != 0) std::memcpy(own, received_[at(root)], mine);
      }
      // Slice r goes from rank r to all ranks, or to the root. The root of a broadcast has them all.
      const bool gets = receives && (reduces || self_.rank != root);
      for (int r = 0; r < self_.size; ++r) {
        received_[at(r)] = nullptr;
        if (gets && r != self_.rank) post_receive(r, counts_[at(r)] * width, context);
      }
      for (int r = 0; r < self_.size; ++r)
        if (r != self_.rank && (to_all ? reduces || r != root : r == root)) post_send(r, own, mine, context);
      complete_step(context, wait);
      if constexpr (reduces) {
        if (gets) copy_out(received_, c.receive.bytes(), width);
      } else {
        if (gets) copy_out(received_, c.buffer.bytes(), width);
      }
    }
  }
  void copy_out(const std::vector<std::byte*>& from, std::byte* to, std::size_t width) noexcept {
    for (std::size_t r = 0; r < ranks_; ++r)
      if (from[r] != nullptr && counts_[r] != 0) std::memcpy(to + offsets_[r] * width, from[r], counts_[r] * width);
  }

  /// Transfers one block from each rank to each rank, step by step.
  template <class Call, class Wait>
  void move_blocks(const Call& c, const std::vector<detail::PeerView>& peers, const ErrorContext& context,
                   Wait&& wait) {
    using enum calls::CollectiveKind;
    const std::size_t width = detail::element_width(c);
    const int me = self_.rank;
    const bool receives = [&] {
      if constexpr (Call::kind == gather)
        return me == c.root;
      else
        return true;
    }();
    // The place of rank r's block in this rank's `receive`.
    const auto place = [&](int r) -> std::byte* {
      if constexpr (Call::kind == all_to_all)
        return c.receive.bytes() + calls::block_offset(c.receive_counts, c.send.size() / ranks_, r) * width;
      else if constexpr (Call::kind == scatter)
        return c.receive.bytes();
      else
        return c.receive.bytes() + calls::block_offset(c.counts, c.send.size(), r) * width;
    };
    const auto sent_to = [&](int r) {
      if constexpr (Call::kind == gather)
        if (r != c.root) return detail::ByteRange{};
      return detail::range_of(c, peers, me, r);
    };
    const auto received_from = [&](int r) { return receives ? detail::range_of(c, peers, r, me).bytes : 0; };
    std::size_t longest = 0;
    for (int r = 0; r < self_.size; ++r)
      if (r != me) longest = std::max({longest, sent_to(r).bytes, received_from(r)});
    const auto part = [&](std::size_t whole, std::size_t done) {
      return std::min(step_bytes_, whole - std::min(done, whole));
    };
    if (const auto own = sent_to(me); receives && own.bytes != 0)
      detail::copy_bytes(place(me), c.send.bytes() + own.offset, own.bytes);
    for (std::size_t done = 0; done < longest; done += step_bytes_) {
      for (int r = 0; r < self_.size; ++r)
        if (r != me) post_receive(r, part(received_from(r), done), context);
      for (int r = 0; r < self_.size; ++r)
        if (const auto range = sent_to(r); r != me)
          post_send(r, c.send.bytes() + range.offset + done, part(range.bytes, done), context);
      complete_step(context, wait);
      for (int r = 0; r < self_.size; ++r)
        if (const auto bytes = part(received_from(r), done); r != me && bytes != 0)
          std::memcpy(place(r) + done, received_[at(r)], bytes);
    }
  }

  MPI_Comm comm_;
  calls::RankOf self_;
  std::size_t ranks_;
  std::size_t step_bytes_;
  Buffer<std::byte> staging_;     ///< allocated by the first large call
  Buffer<std::byte> own_slices_;  ///< the results of a rank that is not the root of `reduce`
  std::size_t used_ = 0;
  const std::byte* staged_from_ = nullptr;
  std::byte* staged_ = nullptr;
  std::vector<MPI_Request> requests_;
  std::vector<int> parties_;                   ///< the other rank of each request
  std::vector<bool> receives_;                 ///< whether the request is a receive
  std::vector<std::size_t> offsets_, counts_;  ///< of each rank's slice, in elements
  std::vector<std::byte*> received_;
  std::vector<const void*> sources_;
  int tag_ = 0;
};

}  // namespace distx::detail::mpi
