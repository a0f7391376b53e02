// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <thread>

#include "distx/connect/detail/product.hpp"
#include "distx/connect/threads.hpp"

namespace distx {

/// `threads(n)`: n ranks to be, as threads of this process; see `spawn`.
struct Threads {
  int count;
  Timeout deadline = default_deadline;
};

/// `threads(n) * outer`: n ranks in each rank of `outer`, which is borrowed.
template <Connector Outer>
struct ThreadsIn {
  Threads threads;
  Outer* outer;
};

/// @throws MismatchError unless count >= 1
[[nodiscard]] inline Threads threads(int count, Timeout deadline = default_deadline) {
  if (count < 1) throw MismatchError("threads(" + std::to_string(count) + "): at least one rank is needed");
  return {count, deadline};
}

template <Connector Outer>
[[nodiscard]] ThreadsIn<Outer> operator*(Threads threads, Outer& outer) {
  return {threads, &outer};
}

namespace detail {

inline std::string words_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

/// Runs `body(connector)` once for each rank; rank 0 on the calling thread, which MPI may demand.
template <class Body>
void run_threads(Threads threads, Body&& body) {
  const auto world = std::make_shared<ThreadWorld>(threads.count, threads.deadline);
  const auto run = [&](int rank) noexcept {
    try {
      body(ThreadConnector(world, rank));
    } catch (const RevokedError& error) {
      world->end(rank, error.what(), std::current_exception(), true);
    } catch (...) {
      const auto cause = std::current_exception();
      world->end(rank, words_of(cause), cause);
    }
  };
  {
    std::vector<std::jthread> others;  // joined by their destructors, also when a thread cannot be started
    try {
      others.reserve(static_cast<std::size_t>(threads.count));
      for (int rank = 1; rank < threads.count; ++rank) others.emplace_back(run, rank);
    } catch (const std::exception& error) {
      world->end(0, std::string("no thread could be started: ") + error.what(), std::current_exception());
    }
    if (!world->ended() || threads.count == 1) run(0);
  }
  if (world->ended()) throw world->failure();
}

}  // namespace detail

/// Runs `f(connector)` on n ranks, each a thread of this process, and returns when all have ended.
///
/// Rank 0 runs on the calling thread.
/// @throws RankFailure when a rank ended with an exception: the first one, with its rank; it ends the others' waits
template <class F>
  requires std::invocable<F&, ThreadConnector&>
void spawn(Threads threads, F&& f) {
  detail::run_threads(threads, [&](ThreadConnector connector) { f(connector); });
}

template <class F>
  requires std::invocable<F&, ThreadConnector&>
void spawn(int count, F&& f) {
  spawn(threads(count), f);
}

/// Runs `f(connector)` on n ranks in each rank of the outer connector. Collective over the outer connector.
template <Connector Outer, class F>
  requires std::invocable<F&, ProductConnector<ThreadConnector, Outer>&>
void spawn(ThreadsIn<Outer> ranks, F&& f) {
  detail::run_threads(ranks.threads, [&](ThreadConnector connector) {
    ProductConnector<ThreadConnector, Outer> ranks_in_all(std::move(connector), *ranks.outer);
    f(ranks_in_all);
  });
}

}  // namespace distx
