// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>

#include "distx/connect/self.hpp"
#include "distx/core/detail/wait.hpp"

namespace distx {

namespace detail {

/// What the threads of one `spawn` share: a flag of arrival and a published span for each rank, and how it ended.
class ThreadWorld final : public FailureChannel {
 public:
  ThreadWorld(int size, Timeout deadline) : deadline_(deadline), ranks_(static_cast<std::size_t>(size)) {}

  [[nodiscard]] int size() const noexcept { return static_cast<int>(ranks_.size()); }

  /// Publishes a copy of `mine`, waits for all, lets `read(rank, span)` see every rank's span, and waits again.
  template <class Read>
  void exchange(int rank, std::span<const std::byte> mine, std::string_view operation, Read&& read) {
    Rank& self = ranks_[static_cast<std::size_t>(rank)];
    if (self.failed)
      throw RevokedError("an earlier call of this connector has failed",
                         {.operation = operation, .backend = "threads", .rank = rank, .size = size()});
    self.failed = true;  // unless all have read: who comes late may still read what a rank that gave up has said
    self.said.assign(mine.begin(), mine.end());
    arrive(rank, operation);
    for (std::size_t other = 0; other < ranks_.size(); ++other)
      read(static_cast<int>(other), std::span<const std::byte>(ranks_[other].said));
    arrive(rank, operation);
    self.failed = false;
  }

  /// Ends the world: every wait in it, now or later, throws. The first caller's reason stays, unless that was a
  /// RevokedError, which only tells what another rank did.
  void end(int rank, std::string reason, std::exception_ptr cause, bool told_by_another = false) noexcept {
    const std::lock_guard lock(mutex_);
    if (ended() && (told_by_another || !told_by_another_)) return;
    failed_rank_ = rank;
    reason_ = std::move(reason);
    cause_ = std::move(cause);
    told_by_another_ = told_by_another;
    ended_.store(true, std::memory_order_release);
  }
  [[nodiscard]] bool ended() const noexcept { return ended_.load(std::memory_order_acquire); }
  /// @pre ended()
  [[nodiscard]] RankFailure failure() const {
    const std::lock_guard lock(mutex_);
    return RankFailure(to_string(), failed_rank_, cause_);
  }

  void publish(std::uint64_t identity, const std::string& reason) noexcept override {
    const std::lock_guard lock(mutex_);
    if (!ended()) board_.publish(identity, reason);  // else its end has been heard first
  }
  [[nodiscard]] std::optional<std::string> poll(std::uint64_t identity) override {
    const std::lock_guard lock(mutex_);
    if (auto told = board_.poll(identity)) return told;
    if (ended()) return to_string();
    return std::nullopt;
  }

 private:
  struct alignas(64) Rank {
    std::atomic<std::uint64_t> arrived{0};
    std::vector<std::byte> said;
    bool failed = false;
  };

  /// @pre the mutex is held, and ended()
  [[nodiscard]] std::string to_string() const {
    return "rank " + std::to_string(failed_rank_) + " of " + std::to_string(size()) +
           " ended with an exception: " + reason_;
  }

  void arrive(int rank, std::string_view operation) {
    auto& mine = ranks_[static_cast<std::size_t>(rank)].arrived;
    const std::uint64_t now = mine.load(std::memory_order_relaxed) + 1;
    mine.store(now, std::memory_order_release);
    std::size_t other = 0;
    const auto all = [&] {
      while (other < ranks_.size() && ranks_[other].arrived.load(std::memory_order_acquire) >= now) ++other;
      return other == ranks_.size();
    };
    const auto end = wait_until(deadline_, all, [&] { return ended(); });
    const ErrorContext context{.operation = operation, .backend = "threads", .rank = rank, .size = size()};
    if (end == WaitEnd::stopped) throw RevokedError(failure().what(), context);
    if (end == WaitEnd::expired)
      throw TimeoutError("rank " + std::to_string(other) + " has not arrived after " + deadline_.to_string(), context);
  }

  Timeout deadline_;
  std::vector<Rank> ranks_;
  std::atomic<bool> ended_{false};
  mutable std::mutex mutex_;
  LocalFailureChannel board_;
  bool told_by_another_ = false;
  int failed_rank_ = -1;
  std::string reason_;
  std::exception_ptr cause_;
};

}  // namespace detail

/// One of N ranks that are threads of this process; `spawn` makes them.
class ThreadConnector {
 public:
  ThreadConnector(std::shared_ptr<detail::ThreadWorld> world, int rank) : world_(std::move(world)), rank_(rank) {}

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return world_->size(); }
  [[nodiscard]] int local_rank() const noexcept { return rank_; }
  [[nodiscard]] int local_size() const noexcept { return world_->size(); }
  [[nodiscard]] int root_rank() const noexcept { return 0; }

  /// @throws TimeoutError, RevokedError when another rank has ended with an exception
  void barrier() {
    world_->exchange(rank_, {}, "barrier", [](int, auto) {});
  }
  void broadcast(std::span<std::byte> bytes, int root) {
    detail::check_control_root(root, rank_, size());
    std::size_t sent = 0;
    world_->exchange(rank_, bytes, "broadcast", [&](int rank, std::span<const std::byte> source) {
      if (rank != root) return;
      sent = source.size();
      if (rank != rank_ && sent == bytes.size()) std::copy(source.begin(), source.end(), bytes.begin());
    });
    if (sent != bytes.size()) throw different("broadcast", root, sent, bytes.size());
  }
  void all_gather(std::span<const std::byte> send, std::span<std::byte> receive) {
    detail::check_control_gather(send.size(), receive.size(), rank_, size());
    int odd = -1;
    std::size_t odd_size = 0;
    world_->exchange(rank_, send, "all_gather", [&](int rank, std::span<const std::byte> source) {
      if (source.size() != send.size()) {
        odd = rank;
        odd_size = source.size();
      } else if (!source.empty()) {
        std::memmove(receive.data() + static_cast<std::size_t>(rank) * send.size(), source.data(), source.size());
      }
    });
    if (odd >= 0) throw different("all_gather", odd, odd_size, send.size());
  }
  /// They also tell of a rank that has ended with an exception.
  [[nodiscard]] std::shared_ptr<FailureChannel> failure_channel() const noexcept { return world_; }

 private:
  MismatchError different(std::string_view operation, int other, std::size_t theirs, std::size_t mine) const {
    return MismatchError("rank " + std::to_string(other) + " passes " + std::to_string(theirs) + " bytes, this rank " +
                             std::to_string(mine),
                         {.operation = operation, .backend = "threads", .rank = rank_, .size = size()});
  }

  std::shared_ptr<detail::ThreadWorld> world_;
  int rank_;
};

}  // namespace distx
