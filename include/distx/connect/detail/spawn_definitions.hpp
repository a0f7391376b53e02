// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "distx/connect/control/group.hpp"
#include "distx/connect/detail/rank_exception.hpp"
#include "distx/connect/spawn.hpp"
#include "distx/core/detail/leak.hpp"
#include "distx/core/error.hpp"
#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::detail {

namespace control {

/// The root of ranks that are threads of this process. Each thread uses it itself, under the mutex.
class ThreadRoot final : ControlRoot {
 public:
  explicit ThreadRoot(int size) : ControlRoot("threads", size, false) {
    for (auto& rank : ranks_) rank.presence = RankRecord::Presence::here;
    joined_ = true;
  }

 private:
  friend class ThreadTransport;
  std::mutex mutex_;
};

/// The connection of a thread, which ends with its function, also if its connectors still exist.
class ThreadTransport final : public ControlTransport {
 public:
  ThreadTransport(std::shared_ptr<ThreadRoot> root, int rank) : root_(std::move(root)) {
    const std::lock_guard lock(root_->mutex_);
    inbox.rank = rank;
    root_->record(rank).channel = &inbox;
  }
  ~ThreadTransport() override {
    const std::lock_guard lock(root_->mutex_);
    if (inbox.rank >= 0) root_->record(inbox.rank).channel = nullptr;
  }

  void submit(Frame frame) override {
    const std::lock_guard lock(root_->mutex_);
    if (inbox.rank >= 0 && !root_->take(inbox.rank, std::move(frame))) inbox.lose(ThreadRoot::out_of_order);
  }
  time_point receive(std::chrono::microseconds) override {
    const std::lock_guard lock(root_->mutex_);
    root_->expire(Deadline::clock::now());
    return root_->next_end();
  }
  void leave(bool, bool, const Timeout&) override {}
  /// Notes that the rank's function has ended. @param message  follows the name of the rank
  void end(RankEnd how, const std::string& message) {
    const std::lock_guard lock(root_->mutex_);
    if (inbox.rank >= 0) root_->end(inbox.rank, how, root_->name(inbox.rank) + message);
  }

 private:
  std::shared_ptr<ThreadRoot> root_;
};

}  // namespace control

/// The first exception of a rank, unless it is a RevokedError, which follows from another one. A RankFailure may be
/// that of ranks that the thread has spawned itself.
class FirstException {
 public:
  /// Notes the exception that is being handled; returns the message that follows the name of the rank.
  std::string note(int rank, const std::string& prefix = {}) {
    auto current = RankException::current();
    current.message.insert(0, prefix);
    const std::lock_guard lock(mutex_);
    using enum RankException::Kind;
    if (rank_ < 0 || (first_.kind == revoked && current.kind != revoked)) {
      rank_ = rank;
      first_ = current;
      cause_ = std::current_exception();
    }
    return ended + current.message;
  }
  /// @throws RankFailure if there is one
  void raise(int size) const {
    const std::lock_guard lock(mutex_);
    if (rank_ >= 0) throw RankFailure(control::name_of(rank_, size) + ended + first_.message, rank_, cause_);
  }

 private:
  static constexpr const char* ended = " ended with an exception: ";
  mutable std::mutex mutex_;
  int rank_ = -1;
  RankException first_;
  std::exception_ptr cause_;
};

DISTX_INLINE void run_threads(Threads threads, const std::function<void(ThreadConnector)>& body) {
  const MadeHere made;
  const auto root = std::make_shared<control::ThreadRoot>(threads.count);
  std::vector<std::shared_ptr<control::ThreadTransport>> links;  // of all, before the first one uses it
  for (int rank = 0; rank < threads.count; ++rank)
    links.push_back(std::make_shared<control::ThreadTransport>(root, rank));
  FirstException first;
  // A forked process does not end the ranks of this one, and another thread may have held the root's mutex at the fork.
  const auto end = [&](int rank, control::RankEnd how, const std::string& message) {
    if (made.is_here()) links[static_cast<std::size_t>(rank)]->end(how, message);
  };
  const auto run = [&](int rank) noexcept {
    try {
      const control::FrameFields group{
          .rank = rank, .size = threads.count, .local_rank = rank, .local_size = threads.count};
      body(ThreadConnector(
          make_here<control::ControlGroup>("threads", threads.deadline, group, links[static_cast<std::size_t>(rank)])));
      end(rank, control::RankEnd::left, " has returned and will not enter this call");
    } catch (...) {
      end(rank, control::RankEnd::threw, first.note(rank));
    }
  };
  {
    std::vector<std::jthread> others;  // joined by their destructors, also when a thread cannot be started
    try {
      others.reserve(links.size());
      for (int rank = 1; rank < threads.count; ++rank) others.emplace_back(run, rank);
    } catch (const std::exception&) {
      end(0, control::RankEnd::threw, first.note(0, "cannot start a thread: "));
      first.raise(threads.count);
    }
    run(0);  // also if a rank has failed already: the others may continue
    if (!made.is_here()) {
      leak(std::move(others));  // a forked process does not have these threads
      leak(std::move(links));
    }
  }
  first.raise(threads.count);
}

}  // namespace distx::inline DISTX_ABI::detail
