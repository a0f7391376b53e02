// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/control/group.hpp"

namespace distx::inline DISTX_ABI::detail::control {

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

  void submit(const Frame& frame) override {
    const std::lock_guard lock(root_->mutex_);
    if (inbox.rank >= 0 && !root_->take(inbox.rank, frame)) inbox.lose(ThreadRoot::out_of_order);
  }
  time_point receive(std::chrono::microseconds) override {
    const std::lock_guard lock(root_->mutex_);
    root_->expire(Deadline::clock::now());
    return root_->next_end();
  }
  void leave(bool, bool, const Timeout&) override {}
  /// @param reason  the message of the exception with which the rank's function has ended; null if it has returned
  void end(const std::string* reason) {
    const std::lock_guard lock(root_->mutex_);
    if (inbox.rank < 0) return;
    const auto rank = root_->name(inbox.rank);
    if (reason == nullptr)
      root_->end(inbox.rank, RankEnd::left, rank + " has returned and will not enter this call");
    else
      root_->end(inbox.rank, RankEnd::threw, rank + " ended with an exception: " + *reason);
  }

 private:
  std::shared_ptr<ThreadRoot> root_;
};

}  // namespace distx::inline DISTX_ABI::detail::control
