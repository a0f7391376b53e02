// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "distx/connect/detail/thread_group.hpp"
#include "distx/connect/spawn.hpp"
#include "distx/core/detail/inline.hpp"
#include "distx/core/detail/leak.hpp"
#include "distx/core/detail/unknown_exception.hpp"

namespace distx::detail {

inline std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return unknown_exception;
  }
}

DISTX_INLINE void run_threads(Threads threads, void (*body)(void* state, ThreadConnector connector), void* state) {
  const auto group = std::make_shared<ThreadGroup>(threads.count, threads.deadline);
  const auto run = [&](int rank) noexcept {
    try {
      body(state, ThreadConnector(group, rank));
    } catch (const RevokedError& error) {
      group->end(rank, error.what(), std::current_exception(), true);
    } catch (...) {
      const auto cause = std::current_exception();
      group->end(rank, message_of(cause), cause);
    }
    group->leave(rank);
  };
  {
    std::vector<std::jthread> others;  // joined by their destructors, also when a thread cannot be started
    try {
      others.reserve(static_cast<std::size_t>(threads.count));
      for (int rank = 1; rank < threads.count; ++rank) others.emplace_back(run, rank);
    } catch (const std::exception& error) {
      group->end(0, std::string("cannot start a thread: ") + error.what(), std::current_exception());
      throw group->failure();
    }
    run(0);                                          // also if a rank has failed already: the others may continue
    if (!group->is_here()) leak(std::move(others));  // a forked process does not have these threads
  }
  if (group->ended()) throw group->failure();
}

}  // namespace distx::detail
