// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <memory>
#include <vector>

#include "distx/comm/shared_memory/message_request.hpp"
#include "distx/comm/shared_memory/shared_layout.hpp"
#include "distx/core/detail/wait.hpp"

namespace distx::shared_memory {

/// What the ranks of a region find it by; copied from rank to rank as bytes.
struct RegionToken {
  std::array<std::uint64_t, 5> words{};
};

/// One `allocate`, step by step; between the steps every rank learns what the others have.
class RegionAllocation {
 public:
  struct Request {
    std::uint64_t count = 0;
    std::uint64_t element_bytes = 0;
  };

  virtual ~RegionAllocation() = default;
  /// @throws MismatchError on every rank if the requests differ; MemoryError on every rank if there is too little
  /// memory
  virtual void check(const Request& mine, const std::vector<Request>& all) = 0;
  /// Makes the segment on the first rank; does nothing on others.
  [[nodiscard]] virtual RegionToken make() = 0;
  /// Maps it, on every rank.
  virtual void open(const RegionToken& token) = 0;
  /// Returns the owner of this rank's part. @pre every rank has opened the segment
  [[nodiscard]] virtual std::shared_ptr<void> owner() = 0;
};

/// What the ranks of one communicator share, as one of them sees it: how they meet, and which memory they reach.
///
/// A collective is: publish, arrive, compare, run_round on one's own part of everybody's memory, arrive. A rank that
/// works is `busy`: revoking waits for it, so that nobody's buffer is read after its owner has been told of an error.
class SharedRegion : public std::enable_shared_from_this<SharedRegion> {
 public:
  SharedRegion(const SharedLayout& control, const Timeout& deadline) noexcept
      : control_(control), deadline_(deadline) {}
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;
  virtual ~SharedRegion() = default;

  [[nodiscard]] const SharedLayout& control() const noexcept { return control_; }
  [[nodiscard]] int size() const noexcept { return control_.size(); }
  [[nodiscard]] const Timeout& deadline() const noexcept { return deadline_; }

  /// @name Siblings
  /// A region of other ranks: one of them makes it and keeps `keep` until the others have opened it by the token.
  /// @{
  [[nodiscard]] virtual RegionToken make_sibling(int size, std::shared_ptr<void>& keep) = 0;
  [[nodiscard]] virtual std::shared_ptr<SharedRegion> open_sibling(const RegionToken& token, int rank, int size) = 0;
  /// @}
  /// Returns the steps of an allocation in shared memory, or null if this rank's plain memory serves as well.
  [[nodiscard]] virtual std::unique_ptr<RegionAllocation> new_allocation(const RankOf&) { return nullptr; }

  /// Where memory of this rank lies for the others.
  [[nodiscard]] virtual SharedAddress address_of(const void* memory, std::size_t bytes) noexcept = 0;
  /// What lies there, null where this rank does not reach it.
  [[nodiscard]] virtual std::byte* at(const SharedAddress& place) noexcept = 0;
  /// Whether a rank's process has ended without a word. Asks the system.
  [[nodiscard]] virtual bool died(int) noexcept { return false; }

  /// @name Messages
  /// `post` makes an envelope meet its counterpart, or leaves it until that comes; `advance` says whether it is done,
  /// and does what is left for this side; `withdraw` takes one back that has not met: false where it has.
  /// @{
  virtual void post(const std::shared_ptr<MessageRequest>& mine, const ErrorContext& context) = 0;
  [[nodiscard]] virtual bool advance(MessageRequest& mine) noexcept = 0;
  virtual bool withdraw(MessageRequest& mine) noexcept = 0;
  /// @}

  /// Returns when every rank has arrived as often as this one, which takes one deadline at most.
  void arrive(CallQueue queue, int rank, const ErrorContext& context) {
    auto& mine = control_.channel(rank, queue).arrived;
    const std::uint64_t now = mine.load(std::memory_order_relaxed) + 1;
    mine.store(now, std::memory_order_release);
    int other = 0;
    const auto all = [&] {
      while (other < size() && has_arrived(queue, other, now)) ++other;
      return other == size();
    };
    wait(
        context, all, [&] { return missing(queue, now, other); },
        [&](LivenessProbe& look) { return gone(look, queue, now, other); });
  }

  /// Waits until `ready()`, which is in the hands of rank `other`: or throws, with `late()` when the deadline is over.
  template <class Ready, class Late>
  void wait(int other, const ErrorContext& context, Ready&& ready, Late&& late) {
    wait(context, ready, late,
         [&](LivenessProbe& look) { return has_left(other) || look.died(*this, other) ? other : -1; });
  }

  [[nodiscard]] bool revoked() const noexcept { return control_.header().revoked.load(std::memory_order_seq_cst) == 2; }
  /// Ends every wait of every rank; the first reason stays. Returns when no other rank reads anybody's buffers.
  void revoke(int rank, const std::string& reason) noexcept {
    Header& header = control_.header();
    std::uint32_t none_yet = 0;
    if (header.revoked.compare_exchange_strong(none_yet, 1)) {
      const std::string words = "rank " + std::to_string(rank) + " revoked the communicator: " + reason;
      header.reason[words.copy(header.reason, sizeof header.reason - 1)] = '\0';
    } else if (none_yet == 1) {
      // Another rank is writing its reason, unless it died over that. Until then nobody would see the revocation.
      detail::wait_until(std::chrono::seconds(1), [&] { return revoked(); }, [] { return false; });
    }
    header.revoked.store(2, std::memory_order_seq_cst);
    for (int other = 0; other < size(); ++other) {
      if (other == rank) continue;
      LivenessProbe look;
      for (const CallSlot& channel : control_.rank(other).channels)
        detail::wait_until(
            no_timeout, [&] { return channel.busy.load(std::memory_order_seq_cst) == 0; },
            [&] { return look.died(*this, other); });
    }
  }
  [[noreturn]] void throw_revoked(const ErrorContext& context) const {
    if (const int dead = control_.header().died.load(); dead >= 0) throw_died(dead, context);
    throw RevokedError(control_.header().reason, context);
  }
  /// The error for a wait for rank `other` that will not end.
  [[noreturn]] void throw_stopped(int other, const ErrorContext& context) const {
    if (revoked()) throw_revoked(context);
    if (has_left(other))
      throw RankFailure("rank " + std::to_string(other) + " has destroyed its communicator", other, nullptr, context);
    std::int32_t nobody = -1;
    control_.header().died.compare_exchange_strong(nobody, other);
    throw_died(other, context);
  }

  /// This rank makes no more calls; a rank that waits for it is told so.
  void leave(int rank) noexcept { control_.rank(rank).left.store(1, std::memory_order_release); }
  [[nodiscard]] bool has_left(int rank) const noexcept {
    return control_.rank(rank).left.load(std::memory_order_acquire) != 0;
  }

  /// Asks whether a rank has died, but every few milliseconds only.
  class LivenessProbe {
   public:
    [[nodiscard]] bool died(SharedRegion& region, int rank) noexcept { return is_time() && region.died(rank); }
    [[nodiscard]] bool is_time() noexcept {
      const auto now = Deadline::clock::now();
      if (next_ == Deadline::clock::time_point{}) next_ = now + interval;
      if (now < next_) return false;
      next_ = now + interval;
      ++turn;
      return true;
    }
    int turn = 0;

   private:
    static constexpr std::chrono::milliseconds interval{5};
    Deadline::clock::time_point next_{};
  };

 private:
  /// Waits until `ready()`; `lost(look)` is a rank that will not do its part, -1 where none is known.
  template <class Ready, class Late, class Lost>
  void wait(const ErrorContext& context, Ready&& ready, Late&& late, Lost&& lost) {
    LivenessProbe look;
    int who = -1;
    const auto stopped = [&] { return revoked() || (who = lost(look)) >= 0; };
    switch (detail::wait_until(deadline_, ready, stopped)) {
      case detail::WaitEnd::ready:
        return;
      case detail::WaitEnd::expired:
        throw TimeoutError(late(), context);
      case detail::WaitEnd::stopped:
        throw_stopped(who, context);
    }
  }
  [[nodiscard]] bool has_arrived(CallQueue queue, int rank, std::uint64_t now) const noexcept {
    return control_.channel(rank, queue).arrived.load(std::memory_order_acquire) >= now;
  }
  [[noreturn]] void throw_died(int rank, const ErrorContext& context) const {
    throw RankFailure(
        "rank " + std::to_string(rank) + " (pid " + std::to_string(control_.rank(rank).process) + ") has died", rank,
        nullptr, context);
  }
  /// One of the ranks that have not arrived, if it has left or died; `other` may be late because it waits for that one.
  [[nodiscard]] int gone(LivenessProbe& look, CallQueue queue, std::uint64_t now, int other) noexcept {
    if (has_left(other) && !has_arrived(queue, other, now)) return other;
    if (!look.is_time()) return -1;
    for (int step = 0; step < size(); ++step) {
      const int rank = (look.turn + step) % size();
      if (has_arrived(queue, rank, now)) continue;
      const bool is_gone = has_left(rank) || died(rank);
      return is_gone && !has_arrived(queue, rank, now) ? rank : -1;  // else it came, and went then
    }
    return -1;
  }
  /// @param first rank that has not arrived
  std::string missing(CallQueue queue, std::uint64_t now, int first) const {
    std::string ranks = std::to_string(first);
    for (int other = first + 1; other < size(); ++other)
      if (!has_arrived(queue, other, now)) ranks += ", " + std::to_string(other);
    const bool one = ranks.find(',') == std::string::npos;
    return "timed out after " + deadline_.to_string() + (one ? ": rank " : ": ranks ") + ranks + " did not join";
  }

  SharedLayout control_;
  Timeout deadline_;
};

}  // namespace distx::shared_memory
