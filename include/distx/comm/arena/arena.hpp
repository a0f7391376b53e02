// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <atomic>
#include <mutex>
#include <vector>

#include "distx/comm/arena/mailbox.hpp"
#include "distx/comm/validate.hpp"
#include "distx/core/wait.hpp"
#include "distx/memory/buffer.hpp"

namespace distx::arena {

/// What a rank publishes of its call: where its spans and counts lie, and what must agree.
struct Post {
  const std::byte* send = nullptr;
  std::byte* receive = nullptr;
  std::size_t send_count = 0;
  std::size_t receive_count = 0;
  Counts send_counts{};
  Counts receive_counts{};
  Fingerprint fingerprint{};
};

/// What all ranks of one communicator share when they are threads of one process.
///
/// A collective is: publish, wait until all have published, compare, work on one's own part of everybody's buffers,
/// wait until all have. Blocking and started calls have a channel each. A rank that works is `busy`: revoking waits for
/// it, so that nobody's buffer is read after its owner has been told of an error.
class Arena {
 public:
  enum class Lane { blocking, started };

  Arena(int size, Timeout deadline) : deadline_(deadline), ranks_(static_cast<std::size_t>(size)) {}

  [[nodiscard]] int size() const noexcept { return static_cast<int>(ranks_.size()); }
  [[nodiscard]] const Timeout& deadline() const noexcept { return deadline_; }
  [[nodiscard]] Mailbox& mailbox(int rank) noexcept { return at(rank).mailbox; }

  /// Runs `agree(peer)` and `work(peer)` when every rank has made the same call, where `peer(r)` is rank r's post;
  /// returns when every rank has run its own. What `agree` refuses, every rank must refuse.
  template <class Agree, class Work>
  void collective(Lane lane, int rank, const Post& mine, const ErrorContext& context, Agree&& agree, Work&& work) {
    Channel& channel = at(rank).channels[static_cast<std::size_t>(lane)];
    {
      // Busy from before this rank is seen to have come: whoever revokes later waits for it, so that the counts that
      // `agree` reads are still there.
      const Busy busy(channel);
      if (revoked()) throw_revoked(context);
      channel.post = mine;
      arrive(lane, rank, context);
      const auto peer = [&](int other) -> const Post& {
        return at(other).channels[static_cast<std::size_t>(lane)].post;
      };
      compare(lane, mine, context);
      agree(peer);
      if (revoked()) throw_revoked(context);
      work(peer);
    }
    arrive(lane, rank, context);
  }

  [[nodiscard]] bool revoked() const noexcept { return revoked_.load(std::memory_order_seq_cst); }

  /// Ends every wait of every rank; the first reason stays. Returns when no other rank reads anybody's buffers.
  void revoke(int rank, const std::string& reason) noexcept {
    {
      const std::lock_guard lock(mutex_);
      if (!revoked()) {
        reason_ = "rank " + std::to_string(rank) + " revoked the communicator: " + reason;
        revoked_.store(true, std::memory_order_seq_cst);
      }
    }
    for (std::size_t other = 0; other < ranks_.size(); ++other) {
      if (static_cast<int>(other) == rank) continue;
      for (const Channel& channel : ranks_[other].channels)
        while (channel.busy.load(std::memory_order_seq_cst)) std::this_thread::yield();
    }
  }
  [[noreturn]] void throw_revoked(const ErrorContext& context) const {
    const std::lock_guard lock(mutex_);
    throw RevokedError(reason_, context);
  }

  /// This rank makes no more calls; a rank that waits for it is told so.
  void leave(int rank) noexcept { at(rank).left.store(true, std::memory_order_release); }
  [[nodiscard]] bool has_left(int rank) const noexcept { return at(rank).left.load(std::memory_order_acquire); }

 private:
  struct Channel {
    std::atomic<std::uint64_t> arrived{0};
    std::atomic<bool> busy{false};
    Post post;
  };
  struct alignas(alignment_bytes) Rank {
    std::array<Channel, 2> channels;
    std::atomic<bool> left{false};
    Mailbox mailbox;
  };
  struct Busy {
    explicit Busy(Channel& c) noexcept : channel(c) { channel.busy.store(true, std::memory_order_seq_cst); }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;
    ~Busy() { channel.busy.store(false, std::memory_order_seq_cst); }
    Channel& channel;
  };

  Rank& at(int rank) noexcept { return ranks_[static_cast<std::size_t>(rank)]; }
  const Rank& at(int rank) const noexcept { return ranks_[static_cast<std::size_t>(rank)]; }

  void arrive(Lane lane, int rank, const ErrorContext& context) {
    const auto channel = static_cast<std::size_t>(lane);
    auto& mine = at(rank).channels[channel].arrived;
    const std::uint64_t now = mine.load(std::memory_order_relaxed) + 1;
    mine.store(now, std::memory_order_release);
    for (int other = 0; other < size(); ++other) {
      const auto& theirs = at(other).channels[channel].arrived;
      const auto there = [&] { return theirs.load(std::memory_order_acquire) >= now; };
      switch (detail::wait_until(deadline_, there, [&] { return revoked() || has_left(other); })) {
        case detail::WaitEnd::ready: break;
        case detail::WaitEnd::expired: throw TimeoutError(missing(channel, now), context);
        case detail::WaitEnd::stopped:
          if (revoked()) throw_revoked(context);
          throw RankFailure("rank " + std::to_string(other) + " has let its communicator go and makes no more calls",
                            other, nullptr, context);
      }
    }
  }

  std::string missing(std::size_t channel, std::uint64_t now) const {
    std::string who;
    for (std::size_t other = 0; other < ranks_.size(); ++other)
      if (ranks_[other].channels[channel].arrived.load(std::memory_order_acquire) < now)
        who += (who.empty() ? "" : ", ") + std::to_string(other);
    return "after " + deadline_.words() + " these ranks have not made the call: " + who;
  }

  void compare(Lane lane, const Post& mine, const ErrorContext& context) const {
    for (int other = 0; other < size(); ++other) {
      const Post& theirs = at(other).channels[static_cast<std::size_t>(lane)].post;
      if (!(theirs.fingerprint == mine.fingerprint))
        throw MismatchError(difference(mine.fingerprint, theirs.fingerprint, other), context);
    }
  }

  Timeout deadline_;
  std::vector<Rank> ranks_;
  std::atomic<bool> revoked_{false};
  mutable std::mutex mutex_;
  std::string reason_;
};

}  // namespace distx::arena
