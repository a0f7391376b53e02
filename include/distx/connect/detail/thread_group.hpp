// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "distx/connect/detail/local_failure_channel.hpp"
#include "distx/connect/self.hpp"
#include "distx/core/detail/early_warning.hpp"
#include "distx/core/detail/made_here.hpp"
#include "distx/core/detail/wait.hpp"

namespace distx::detail {

/// The state that the threads of one `spawn` share: each rank's arrivals and published span, and the rank that failed,
/// if any.
class ThreadGroup final : public FailureChannel {
 public:
  ThreadGroup(int size, Timeout deadline) : deadline_(deadline), ranks_(static_cast<std::size_t>(size)) {}

  [[nodiscard]] int size() const noexcept { return static_cast<int>(ranks_.size()); }

  /// Publishes a copy of `mine`, waits for all ranks, calls `read(rank, span)` with every rank's span, and waits again.
  template <class Read>
  void exchange(int rank, std::span<const std::byte> mine, std::string_view operation, Read&& read) {
    Rank& self = ranks_[static_cast<std::size_t>(rank)];
    const ErrorContext context{.operation = operation, .backend = "threads", .rank = rank, .size = size()};
    made_.check("this connector", context);
    if (self.failed) throw RevokedError("an earlier call of this connector failed", context);
    self.failed = true;  // until all have read: a late rank may still read the span of a rank that gave up
    self.published.assign(mine.begin(), mine.end());
    arrive(rank, operation);
    for (std::size_t other = 0; other < ranks_.size(); ++other)
      read(static_cast<int>(other), std::span<const std::byte>(ranks_[other].published));
    arrive(rank, operation);
    self.failed = false;
  }

  /// Makes every wait of the group throw, now and later. The first failure stays, unless it is a consequence of
  /// another: a RevokedError.
  void end(int rank, std::string reason, std::exception_ptr cause, bool consequence = false) noexcept {
    const std::lock_guard lock(mutex_);
    if (const int there = rank_in_smaller(rank); there >= 0) smaller_->end(there, reason, cause, consequence);
    if (ended() && (consequence || !consequence_)) return;
    failed_rank_ = rank;
    reason_ = std::move(reason);
    cause_ = std::move(cause);
    consequence_ = consequence;
    ended_.store(true, std::memory_order_seq_cst);
    gate_.bell.ring();
  }
  /// Notes that a rank's thread ends: it will not enter `shrink`.
  void leave(int rank) noexcept {
    const std::lock_guard lock(mutex_);
    ranks_[static_cast<std::size_t>(rank)].left = true;
    if (const int there = rank_in_smaller(rank); there >= 0) smaller_->leave(there);
  }
  /// Returns the group of the ranks that have entered this call once every other rank has left or the deadline is over,
  /// and this rank in it.
  [[nodiscard]] std::pair<std::shared_ptr<ThreadGroup>, int> shrink(int rank, Timeout deadline) {
    const ErrorContext context{.operation = "shrink", .backend = "threads", .rank = rank, .size = size()};
    made_.check("this connector", context);
    {
      const std::lock_guard lock(mutex_);
      if (std::exchange(ranks_[static_cast<std::size_t>(rank)].shrinks, true)) throw replaced_before(context);
    }
    wait_until(
        deadline,
        [&] {
          const std::lock_guard lock(mutex_);
          return smaller_ != nullptr ||
                 std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.shrinks || r.left; });
        },
        [] { return false; });
    const std::lock_guard lock(mutex_);
    if (smaller_ == nullptr) {
      for (std::size_t other = 0; other < ranks_.size(); ++other)
        if (ranks_[other].shrinks && !ranks_[other].left) survivors_.push_back(static_cast<int>(other));
      smaller_ = std::make_shared<ThreadGroup>(static_cast<int>(survivors_.size()), deadline_);
    }
    const int there = rank_in_smaller(rank);
    if (there < 0) throw left_behind(deadline, context);
    return {smaller_, there};
  }
  [[nodiscard]] bool is_here() const noexcept { return made_.is_here(); }
  [[nodiscard]] bool ended() const noexcept { return ended_.load(std::memory_order_acquire); }
  /// @pre ended()
  [[nodiscard]] RankFailure failure() const {
    const std::lock_guard lock(mutex_);
    return RankFailure(to_string(), failed_rank_, cause_);
  }

  void publish(std::uint64_t identity, const std::string& reason) noexcept override {
    const std::lock_guard lock(mutex_);
    if (!ended()) board_.publish(identity, reason);  // else the rank that failed was first
  }
  [[nodiscard]] std::optional<std::string> poll(std::uint64_t identity) override {
    const std::lock_guard lock(mutex_);
    if (auto reason = board_.poll(identity)) return reason;
    if (ended()) return to_string();
    return std::nullopt;
  }

 private:
  struct alignas(64) Rank {
    std::atomic<std::uint64_t> arrived{0};
    std::vector<std::byte> published;
    bool failed = false;
    bool left = false, shrinks = false;  // guarded by the mutex
  };

  /// @pre the mutex is held
  /// @return -1 if the rank is not in the smaller group, or there is none
  [[nodiscard]] int rank_in_smaller(int rank) const noexcept {
    const auto found = std::find(survivors_.begin(), survivors_.end(), rank);
    return smaller_ == nullptr || found == survivors_.end() ? -1 : static_cast<int>(found - survivors_.begin());
  }

  /// @pre the mutex is held, and ended()
  [[nodiscard]] std::string to_string() const {
    return "rank " + std::to_string(failed_rank_) + " of " + std::to_string(size()) +
           " ended with an exception: " + reason_;
  }

  void arrive(int rank, std::string_view operation) {
    auto& mine = ranks_[static_cast<std::size_t>(rank)].arrived;
    const std::uint64_t now = mine.load(std::memory_order_relaxed) + 1;
    if (arrivals_.fetch_add(1, std::memory_order_acq_rel) + 1 == now * ranks_.size()) gate_.open(now);
    mine.store(now, std::memory_order_release);
    const ErrorContext context{.operation = operation, .backend = "threads", .rank = rank, .size = size()};
    const auto overdue = [&] {
      std::size_t other = 0;
      while (other + 1 < ranks_.size() && ranks_[other].arrived.load(std::memory_order_acquire) >= now) ++other;
      return "timed out after " + deadline_.to_string() + ": rank " + std::to_string(other) + " of " +
             std::to_string(size()) + " did not enter this call";
    };
    EarlyWarning warning(deadline_);
    const auto end = wait_until(
        deadline_, [&] { return gate_.is_open(now); }, [&] { return warning(context, overdue), ended(); },
        SleepOn{[&]() -> Bell& { return gate_.bell; }, std::chrono::seconds(1)});
    if (end == WaitEnd::stopped) throw RevokedError(failure().what(), context);
    if (end == WaitEnd::expired) throw TimeoutError(overdue(), context);
  }

  MadeHere made_;
  Timeout deadline_;
  std::vector<Rank> ranks_;
  std::atomic<std::uint64_t> arrivals_{0};  // of all ranks together
  Gate gate_;
  std::atomic<bool> ended_{false};
  mutable std::mutex mutex_;
  LocalFailureChannel board_;
  bool consequence_ = false;
  int failed_rank_ = -1;
  std::string reason_;
  std::exception_ptr cause_;
  std::shared_ptr<ThreadGroup> smaller_;  // made by `shrink`
  std::vector<int> survivors_;            // its ranks, in this group
};

}  // namespace distx::detail
