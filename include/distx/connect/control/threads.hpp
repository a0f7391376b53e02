// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/control/group.hpp"

namespace distx::inline DISTX_ABI::detail::control {

/// The root of ranks that are threads of this process. Each thread uses it itself.
class ThreadRoot final : ControlRoot {
 public:
  explicit ThreadRoot(int size) : ControlRoot("threads", size, false) {
    for (auto& rank : ranks_) rank.presence = RankRecord::Presence::here;
    joined_ = true;
  }

  void open(Inbox& inbox, int rank) {
    const std::lock_guard lock(mutex_);
    inbox.rank = rank;
    record(rank).channel = &inbox;
  }
  void close(Inbox& inbox) {
    const std::lock_guard lock(mutex_);
    if (inbox.rank >= 0) record(inbox.rank).channel = nullptr;
  }
  void submit(Inbox& from, const Frame& frame) {
    const std::lock_guard lock(mutex_);
    if (from.rank >= 0 && !take(from.rank, frame)) from.lose(out_of_order);
  }
  [[nodiscard]] std::optional<std::string> overdue(const Inbox& inbox, const Timeout& limit) {
    const std::lock_guard lock(mutex_);
    return ControlRoot::overdue(inbox.rank, limit);
  }
  void expire(const Inbox& inbox) {
    const std::lock_guard lock(mutex_);
    expire_waits(inbox.rank);
  }
  /// @param reason  the message of the exception with which the rank's function has ended; null if it has returned
  void end(const Inbox& inbox, const std::string* reason) {
    const std::lock_guard lock(mutex_);
    if (inbox.rank < 0) return;
    const auto rank = name(inbox.rank);
    if (reason == nullptr)
      ControlRoot::end(inbox.rank, RankEnd::left, rank + " has returned and will not enter this call");
    else
      ControlRoot::end(inbox.rank, RankEnd::threw, rank + " ended with an exception: " + *reason);
  }

 private:
  std::mutex mutex_;
};

/// The connection of a thread, which ends with its function, whatever becomes of its connectors.
class ThreadTransport final : public ControlTransport {
 public:
  ThreadTransport(std::shared_ptr<ThreadRoot> root, int rank) : root_(std::move(root)) { root_->open(inbox, rank); }
  ThreadTransport(const ThreadTransport&) = delete;
  ThreadTransport& operator=(const ThreadTransport&) = delete;
  ~ThreadTransport() override { root_->close(inbox); }

  void submit(const Frame& frame) override { root_->submit(inbox, frame); }
  [[nodiscard]] std::optional<std::string> overdue(const Timeout& limit) override {
    return root_->overdue(inbox, limit);
  }
  void expire() override { root_->expire(inbox); }
  void leave(bool, bool, const Timeout&) override {}
  /// See ThreadRoot.
  void end(const std::string* reason) { root_->end(inbox, reason); }

 private:
  std::shared_ptr<ThreadRoot> root_;
};

}  // namespace distx::inline DISTX_ABI::detail::control
