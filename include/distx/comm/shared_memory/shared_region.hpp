// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <memory>
#include <thread>
#include <vector>

#include "distx/comm/memory.hpp"
#include "distx/comm/runtime/progress_thread.hpp"
#include "distx/comm/shared_memory/message_request.hpp"
#include "distx/comm/shared_memory/shared_layout.hpp"
#include "distx/core/detail/early_warning.hpp"
#include "distx/core/detail/revocation_reason.hpp"
#include "distx/core/detail/wait.hpp"

namespace distx::inline DISTX_ABI::detail::shared_memory {

/// Identifies a region; sent from rank to rank as bytes.
struct RegionToken {
  std::array<std::uint64_t, 6> words{};
};

/// The steps of one `allocate` or `adopt`; after each step the ranks exchange their results.
class RegionAllocation {
 public:
  struct Request {
    std::uint64_t count = 0;
    std::uint64_t element_bytes = 0;
    std::uint64_t adopted = 0;  ///< the address of the memory to adopt
  };

  /// Undoes the steps, unless `owner` was called.
  virtual ~RegionAllocation() = default;
  /// Compares the requests of all ranks.
  /// @throws MismatchError on every rank if the requests differ
  /// @throws MemoryError on every rank if there is not enough memory
  /// @throws InvalidArgument if this rank's memory cannot be adopted
  virtual void check(const Request& mine, const std::vector<Request>& all) = 0;
  /// Makes the segment on the first rank; does nothing on other ranks.
  [[nodiscard]] virtual RegionToken make() = 0;
  /// Maps the segment, on every rank; the memory to adopt becomes a part of it, with its contents.
  virtual void open(const RegionToken& token) = 0;
  /// Returns the owner of this rank's part. @pre every rank has opened the segment
  [[nodiscard]] virtual std::shared_ptr<void> owner() = 0;
};

/// Selects every rank.
struct AllRanks {
  constexpr bool operator()(int) const noexcept { return true; }
};

/// One rank's view of the memory that the ranks of a communicator share: how they synchronize and which memory is
/// accessible.
///
/// A collective is: publish, arrive, compare, run_round on this rank's part of all ranks' memory, arrive. If the data
/// is in the published calls, a rank waits for those only that it reads, see run_collective. A rank is `busy` while it
/// accesses other ranks' buffers; revoking waits for it, so no buffer is accessed after its owner has thrown an error.
/// For a rank of another process, which may be stopped, it waits only briefly, and then makes this rank's memory
/// private; but it waits for a write to plain memory that a rank has announced.
class SharedRegion : public std::enable_shared_from_this<SharedRegion> {
 public:
  /// @param parking  how the threads of the ranks sleep and wake each other
  SharedRegion(const SharedLayout& control, const Timeout& deadline, const Parking& parking = in_process) noexcept
      : control_(control), deadline_(deadline), parking_(parking) {
    int most = most_ranks_.load(std::memory_order_relaxed);
    while (most < size() && !most_ranks_.compare_exchange_weak(most, size(), std::memory_order_relaxed)) {
    }
  }
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;
  virtual ~SharedRegion() = default;

  [[nodiscard]] const SharedLayout& control() const noexcept { return control_; }
  [[nodiscard]] int size() const noexcept { return control_.size(); }
  [[nodiscard]] const Timeout& deadline() const noexcept { return deadline_; }

  /// @name Siblings
  /// A region of other ranks: one rank makes it and keeps `keep` until the others have opened it by the token.
  /// @{
  [[nodiscard]] virtual RegionToken make_sibling(int size, std::shared_ptr<void>& keep) = 0;
  [[nodiscard]] virtual std::shared_ptr<SharedRegion> open_sibling(const RegionToken& token, int rank, int size) = 0;
  /// @}
  /// Returns the steps of an allocation in shared memory, or null if this rank's plain memory serves as well.
  [[nodiscard]] virtual std::unique_ptr<RegionAllocation> new_allocation(const RankOf&) { return nullptr; }
  /// Returns the steps that make this rank's memory shared, or null if it serves as it is.
  [[nodiscard]] virtual std::unique_ptr<RegionAllocation> new_adoption(const RankOf&, Span<std::byte>) {
    return nullptr;
  }

  /// @name Memory that all ranks access in place
  /// One rank makes it and keeps `keep` until all have opened it by the token.
  /// @throws MemoryError
  /// @{
  [[nodiscard]] virtual RegionToken make_common(std::size_t bytes, const ErrorContext&,
                                                std::shared_ptr<void>& keep) = 0;
  [[nodiscard]] virtual CommonMemory<Host> open_common(const RegionToken& token, std::size_t bytes,
                                                       const std::vector<ByteRange>& own, const ErrorContext&) = 0;
  /// @}

  /// Returns the address of this rank's memory in a form valid on all ranks.
  [[nodiscard]] virtual SharedAddress address_of(const void* memory, std::size_t bytes) noexcept = 0;
  /// Returns the memory at an address, or null if this rank cannot access it.
  [[nodiscard]] virtual std::byte* at(const SharedAddress& place) noexcept = 0;
  /// @name Memory of other processes
  /// In one copy, without a shared buffer in between, if the system lets this process access the others.
  /// @{
  /// Returns whether this rank copies from the memory of every other rank, as far as it has tried: the system permits
  /// it, and on two ranks it is quicker than a buffer.
  [[nodiscard]] virtual bool reads_all() const noexcept { return false; }
  /// Tries it. @pre every rank has opened the region
  virtual void try_reading_all() noexcept {}
  /// @throws RankFailure if the rank's process has ended
  /// @throws MemoryError if the system refuses
  /// @pre reads_all()
  virtual void read(int /*rank*/, std::byte* /*to*/, const std::byte* /*address*/, std::size_t /*bytes*/,
                    const ErrorContext&) {}
  /// Copies to the memory of another rank.
  /// @throws RevokedError, RankFailure and MemoryError as `read`
  /// @pre reads_all(); this rank is `busy` in this call, of which `rank` has published the address
  virtual void write(int /*rank*/, CallQueue, std::uint64_t /*call*/, std::byte* /*address*/, const std::byte* /*from*/,
                     std::size_t /*bytes*/, const ErrorContext&) {}
  /// @}
  /// Returns whether a rank's process has ended unexpectedly; makes a system call.
  [[nodiscard]] virtual bool died(int) noexcept { return false; }

  /// Makes this rank's shared memory private if that keeps `rank` from accessing it; returns whether it does.
  [[nodiscard]] virtual bool detach_from(int) noexcept { return false; }

  /// @name Messages
  /// `post` matches an envelope with its counterpart or queues it; `advance` completes this side's part and returns
  /// whether the message is done; `withdraw` removes an envelope and returns false if it has already been matched.
  /// `complete_locally` completes the send of an exchange without the answer, after the other rank's has been received;
  /// returns false if the answer has to be awaited.
  /// @{
  virtual void post(const std::shared_ptr<MessageRequest>& mine, const ErrorContext& context) = 0;
  [[nodiscard]] virtual bool advance(MessageRequest& mine) noexcept = 0;
  virtual bool withdraw(MessageRequest& mine) noexcept = 0;
  [[nodiscard]] virtual bool complete_locally(MessageRequest&) noexcept { return false; }
  /// @}

  /// Takes a step, which the other ranks observe, without waiting for them. @pre !control().has_tree()
  void take_step(CallQueue queue, int rank, std::uint64_t step) noexcept {
    CallSlot& mine = control_.channel(rank, queue);
    mine.step.store(step, std::memory_order_seq_cst);
    mine.bell.ring(parking_);
  }
  /// Waits until every rank has taken a step, or the ranks for which `joins(rank)`. Returns whether all had taken it
  /// before the wait.
  template <class Joins = AllRanks>
  bool await(CallQueue queue, int rank, std::uint64_t step, const ErrorContext& context, Joins&& joins = {}) {
    return await(queue, rank, step, context, joins, [&](int other) { return has_taken(queue, other, step); });
  }
  /// The same, if `there(other)` says whether another rank has taken it.
  template <class Joins, class There>
  bool await(CallQueue queue, int rank, std::uint64_t step, const ErrorContext& context, Joins&& joins, There&& there) {
    // Ranks that take turns on a core arrive in turn: a rank that waits for the one before it first sleeps only once.
    int passed = rank;
    const auto awaited = [&] { return (passed == 0 ? size() : passed) - 1; };
    const auto all = [&] {
      for (int other = awaited(); other != rank; other = awaited()) {
        if (joins(other) && !there(other)) return false;
        passed = other;
      }
      return true;
    };
    if (all()) return true;
    LivenessProbe look(probe_interval());
    const auto late = [&] { return missing(queue, rank, step, joins); };
    const auto lost = [&] {
      const int other = awaited();
      return has_left(other) && !has_taken(queue, other, step) ? other : gone(look, queue, step, rank, joins);
    };
    const auto bell = [&]() -> Bell& { return control_.channel(awaited(), queue).bell; };
    const WaitGuard waits(control_.channel(rank, queue).waits);
    const bool patient = queue == CallQueue::blocking && has_core_each() && !ProgressThread::any_task();
    wait(context, all, late, lost, SleepOn{bell, probe_interval(), parking_, patient});
    return false;
  }
  /// Takes a step and waits until every rank has taken it, or the ranks for which `joins(rank)`.
  template <class Joins = AllRanks>
  void arrive(CallQueue queue, int rank, std::uint64_t step, const ErrorContext& context, Joins&& joins = {}) {
    if (control_.has_tree()) return arrive_in_tree(queue, rank, step, context);
    take_step(queue, rank, step);
    await(queue, rank, step, context, joins);
  }
  /// Returns the latest step that a rank has taken.
  [[nodiscard]] std::uint64_t step(CallQueue queue, int rank) const noexcept {
    return control_.channel(rank, queue).step.load(std::memory_order_acquire);
  }

  /// Wakes a rank that waits for a message. @pre the completion was stored sequentially consistently
  void ring_for_message(int rank) noexcept { control_.rank(rank).message_bell.ring(parking_); }
  /// Returns how this rank sleeps until a message is complete.
  [[nodiscard]] auto sleep_for_message(int rank) const noexcept {
    const auto bell = [this, rank]() -> Bell& { return control_.rank(rank).message_bell; };
    return SleepOn{bell, std::chrono::milliseconds(5), parking_};
  }

  /// Waits until `ready()`, which depends on rank `other`; throws if that rank fails, and `late()` at the deadline.
  template <class Ready, class Late>
  void wait(int other, const ErrorContext& context, Ready&& ready, Late&& late) {
    LivenessProbe look;
    wait(context, ready, late, [&] { return has_left(other) || look.died(*this, other) ? other : -1; }, Nap{});
  }

  [[nodiscard]] bool revoked() const noexcept { return control_.header().revoked.load(std::memory_order_seq_cst) == 2; }
  /// Makes every wait of every rank throw; the first reason is kept. Returns when no rank accesses a peer's
  /// buffers.
  void revoke(int rank, const std::string& reason) noexcept {
    Header& header = control_.header();
    const auto given = RevocationReason::parse(reason);
    if (given.kind == RevocationReason::Kind::mismatch)
      control_.rank(rank).knows_mismatch.store(1, std::memory_order_relaxed);
    std::uint32_t none_yet = 0;
    if (header.revoked.compare_exchange_strong(none_yet, 1)) {
      const std::string words = given.by(rank).published();
      header.reason[words.copy(header.reason, sizeof header.reason - 1)] = '\0';
    } else if (none_yet == 1) {
      // Another rank is writing its reason, or exited while doing so. Until it is written, no rank observes the
      // revocation.
      wait_until(std::chrono::seconds(1), [&] { return revoked(); }, [] { return false; });
    }
    header.revoked.store(2, std::memory_order_seq_cst);
    wake_all();
    for (int other = 0; other < size(); ++other) {
      if (other == rank) continue;
      LivenessProbe look;
      const auto idle = [&] {
        for (const CallSlot& channel : control_.rank(other).channels)
          if (channel.busy.load(std::memory_order_seq_cst) != 0) return false;
        return true;
      };
      const auto died = [&] { return look.died(*this, other); };
      if (wait_until(patience(), idle, died) != WaitEnd::expired) continue;
      // A rank that was stopped just before a write to plain memory cannot be prevented from writing.
      const auto has_written = [&] { return !may_write(other, rank); };
      if (wait_until(no_timeout, has_written, died) == WaitEnd::stopped) continue;
      if (!detach_from(other)) wait_until(no_timeout, idle, died);
    }
  }
  [[noreturn]] void throw_revoked(const ErrorContext& context) const {
    if (const int dead = control_.header().died.load(); dead >= 0) throw_died(dead, context);
    auto reason = RevocationReason::parse(control_.header().reason);
    // A rank that went ahead of the others, or that has not joined the call, has not compared it.
    if (reason.kind == RevocationReason::Kind::mismatch && context.rank >= 0)
      reason.thrown = control_.rank(context.rank).knows_mismatch.exchange(1, std::memory_order_relaxed) != 0;
    reason.raise(context);
  }
  /// Throws the error of a wait for rank `other` that cannot complete.
  [[noreturn]] void throw_stopped(int other, const ErrorContext& context) const {
    if (revoked()) throw_revoked(context);
    if (has_left(other))
      throw RankFailure("rank " + std::to_string(other) + " has destroyed its communicator", other, nullptr, context);
    std::int32_t nobody = -1;
    control_.header().died.compare_exchange_strong(nobody, other);
    throw_died(other, context);
  }

  /// Publishes that this rank makes no more calls; ranks that wait for it throw.
  void leave(int rank) noexcept {
    control_.rank(rank).left.store(1, std::memory_order_seq_cst);
    for (CallSlot& channel : control_.rank(rank).channels) channel.bell.ring(parking_);
    for (Gate& gate : control_.header().gates) gate.bell.ring(parking_);
  }
  [[nodiscard]] bool has_left(int rank) const noexcept {
    return control_.rank(rank).left.load(std::memory_order_acquire) != 0;
  }

  /// Checks whether a rank has exited unexpectedly, at most once every few milliseconds.
  class LivenessProbe {
   public:
    explicit LivenessProbe(Deadline::clock::duration interval = std::chrono::milliseconds(5)) noexcept
        : interval_(interval) {}
    [[nodiscard]] bool died(SharedRegion& region, int rank) noexcept { return is_time() && region.died(rank); }
    [[nodiscard]] bool is_time() noexcept {
      const auto now = Deadline::clock::now();
      if (next_ == Deadline::clock::time_point{}) next_ = now + interval_;
      if (now < next_) return false;
      next_ = now + interval_;
      ++turn;
      return true;
    }
    int turn = 0;

   private:
    Deadline::clock::duration interval_;
    Deadline::clock::time_point next_{};
  };

 private:
  /// Returns whether a rank writes to the plain memory of `rank`, which is this one, or is about to.
  [[nodiscard]] bool may_write(int other, int rank) const noexcept {
    for (const CallQueue queue : {CallQueue::blocking, CallQueue::started}) {
      const CallSlot& slot = control_.channel(other, queue);
      if (slot.writes_to.load(std::memory_order_seq_cst) != rank) continue;
      const std::atomic<std::uint64_t>* const written = control_.rank(rank).written[static_cast<std::size_t>(queue)];
      if (written[other].load(std::memory_order_acquire) != slot.write.load()) return true;
    }
    return false;
  }
  /// Returns how long revoking waits for a rank before it makes memory private.
  [[nodiscard]] Timeout patience() const noexcept {
    constexpr Timeout::duration longest = std::chrono::milliseconds(500);
    return deadline_.unlimited() ? longest : std::min<Timeout::duration>(longest, deadline_.limit() / 40);
  }
  /// Returns how often a rank that waits for all looks for one that has exited: together they look as often as a few
  /// do.
  [[nodiscard]] std::chrono::milliseconds probe_interval() const noexcept {
    return std::chrono::milliseconds(5) * std::max(1, size() / 16);
  }
  void wake_all() noexcept {
    for (Gate& gate : control_.header().gates) gate.bell.ring(parking_);
    for (int rank = 0; rank < size(); ++rank) {
      for (CallSlot& channel : control_.rank(rank).channels) channel.bell.ring(parking_);
      control_.rank(rank).message_bell.ring(parking_);
    }
  }
  /// Waits until `ready()`; `lost()` returns a rank that will not do its part, or -1.
  template <class Ready, class Late, class Lost, class Sleep>
  void wait(const ErrorContext& context, Ready&& ready, Late&& late, Lost&& lost, Sleep&& sleep) {
    int who = -1;
    const auto stopped = [&] { return revoked() || who >= 0 || (who = lost()) >= 0; };
    const auto wait_by_sleep = [&](auto&&... with) { return wait_until(with..., sleep); };
    if (wait_for_ranks(deadline_, context, ready, stopped, late, wait_by_sleep)) throw_stopped(who, context);
  }
  [[nodiscard]] bool has_taken(CallQueue queue, int rank, std::uint64_t step) const noexcept {
    return this->step(queue, rank) >= step;
  }
  void arrive_in_tree(CallQueue queue, int rank, std::uint64_t step, const ErrorContext& context) {
    CallSlot& mine = control_.channel(rank, queue);
    const std::uint64_t now = ++mine.climbs;
    Gate& gate = control_.header().gates[static_cast<std::size_t>(queue)];
    if (control_.climb(queue, rank, now)) gate.open(now, parking_);
    mine.step.store(step, std::memory_order_release);  // last: a rank that dies on its way has not arrived
    LivenessProbe look(probe_interval());
    const WaitGuard waits(mine.waits);
    wait(
        context, [&] { return gate.is_open(now); }, [&] { return missing(queue, rank, step, AllRanks{}); },
        [&] { return gone(look, queue, step, rank, AllRanks{}); },
        SleepOn{[&]() -> Bell& { return gate.bell; }, probe_interval(), parking_});
  }
  /// Returns whether each rank can have a processor, judged by the largest communicator that this process has made.
  [[nodiscard]] static bool has_core_each() noexcept {
    static const int processors = static_cast<int>(std::thread::hardware_concurrency());
    return most_ranks_.load(std::memory_order_relaxed) <= processors;
  }
  [[noreturn]] void throw_died(int rank, const ErrorContext& context) const {
    throw RankFailure("rank " + std::to_string(rank) + " (pid " + std::to_string(control_.rank(rank).process) +
                          ") exited unexpectedly",
                      rank, nullptr, context);
  }
  /// Returns a rank that has not taken the step and has left or died, or -1; the awaited one may be late because it
  /// waits for that rank. Each rank looks at another one first.
  template <class Joins>
  [[nodiscard]] int gone(LivenessProbe& look, CallQueue queue, std::uint64_t step, int self, Joins&& joins) noexcept {
    if (!look.is_time()) return -1;
    int probed = -1;
    for (int turn = 1; turn <= size(); ++turn) {
      const int rank = (self + look.turn + turn) % size();
      if (!joins(rank) || has_taken(queue, rank, step)) continue;
      if (has_left(rank)) return has_taken(queue, rank, step) ? -1 : rank;  // it may have arrived before it left
      if (probed < 0) probed = rank;
    }
    return probed >= 0 && died(probed) && !has_taken(queue, probed, step) ? probed : -1;
  }
  template <class Joins>
  std::string missing(CallQueue queue, int self, std::uint64_t step, Joins&& joins) const {
    std::string ranks, elsewhere;
    for (int other = 0; other < size(); ++other) {
      if (other == self || !joins(other) || has_taken(queue, other, step)) continue;
      ranks += (ranks.empty() ? "" : ", ") + std::to_string(other);
      elsewhere += waits_elsewhere(queue, self, other);
    }
    if (ranks.empty()) return "timed out after " + deadline_.to_string() + ": the ranks joined too late";
    const bool one = ranks.find(',') == std::string::npos;
    return "timed out after " + deadline_.to_string() + (one ? ": rank " : ": ranks ") + ranks + " did not join" +
           elsewhere;
  }
  /// Returns the call of the other queue in which a rank waits for this one; empty if there is none.
  std::string waits_elsewhere(CallQueue queue, int self, int other) const {
    const CallQueue there = queue == CallQueue::blocking ? CallQueue::started : CallQueue::blocking;
    const CallSlot& theirs = control_.channel(other, there);
    const std::uint64_t taken = step(there, other);
    if (theirs.waits.load(std::memory_order_acquire) == 0 || taken <= step(there, self)) return {};
    const CallDescriptor post = control_.published(other, there, taken >> 32).rest;
    if (step(there, other) != taken) return {};  // it continues
    std::string text = "; rank " + std::to_string(other) + " waits in " +
                       (there == CallQueue::started ? "an asynchronous " : "a blocking ") +
                       name_and_label(post.fingerprint);
    if (post.send_count > 0)
      text +=
          " of " + std::to_string(post.send_count) + " " + std::string(name_of(post.fingerprint.type)) + " elements";
    return text + ", called in line " + std::to_string(post.line);
  }

  inline static std::atomic<int> most_ranks_{0};

  SharedLayout control_;
  Timeout deadline_;
  const Parking& parking_;
};

}  // namespace distx::inline DISTX_ABI::detail::shared_memory
