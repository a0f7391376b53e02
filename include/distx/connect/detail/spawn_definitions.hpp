// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "distx/connect/control/threads.hpp"
#include "distx/connect/detail/rank_exception.hpp"
#include "distx/connect/spawn.hpp"
#include "distx/core/detail/leak.hpp"
#include "distx/core/error.hpp"
#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The first exception of a rank, unless it is a RevokedError, which follows from another one. A RankFailure may be
/// that of ranks that the thread has spawned itself.
class FirstException {
 public:
  /// Notes the exception that is being handled; returns its message.
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
    return current.message;
  }
  /// @throws RankFailure if there is one
  void raise(int size) const {
    const std::lock_guard lock(mutex_);
    if (rank_ >= 0)
      throw RankFailure(control::name_of(rank_, size) + " ended with an exception: " + first_.message, rank_, cause_);
  }

 private:
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
  const auto end = [&](int rank, const std::string* reason) {
    if (made.is_here()) links[static_cast<std::size_t>(rank)]->end(reason);
  };
  const auto run = [&](int rank) noexcept {
    try {
      body(ThreadConnector(make_here<control::ControlGroup>("threads", threads.deadline,
                                                            RankNumbers(rank, threads.count, rank, threads.count),
                                                            links[static_cast<std::size_t>(rank)])));
      end(rank, nullptr);
    } catch (...) {
      const auto reason = first.note(rank);
      end(rank, &reason);
    }
  };
  {
    std::vector<std::jthread> others;  // joined by their destructors, also when a thread cannot be started
    try {
      others.reserve(links.size());
      for (int rank = 1; rank < threads.count; ++rank) others.emplace_back(run, rank);
    } catch (const std::exception&) {
      const auto reason = first.note(0, "cannot start a thread: ");
      end(0, &reason);
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
