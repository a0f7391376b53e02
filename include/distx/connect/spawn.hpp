// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <concepts>
#include <functional>
#include <utility>

#include "distx/connect/detail/product.hpp"

namespace distx::inline DISTX_ABI {

/// The Connector of N ranks that are threads of this process; `spawn` makes one for each thread. A rank that has
/// returned or ended with an exception enters no further call.
class ThreadConnector : public detail::ErasedConnector {
 public:
  /// For `spawn`, which makes the group.
  explicit ThreadConnector(std::shared_ptr<detail::VirtualConnector> group) noexcept
      : ErasedConnector(std::move(group)) {}

  /// Returns a connector of the surviving ranks, as `AnyConnector::shrink` describes: a rank has ended when its
  /// thread's function has.
  [[nodiscard]] ThreadConnector shrink(Timeout deadline = default_deadline) {
    return ThreadConnector(self_->shrink(deadline));
  }
  /// Returns an equal connector: no thread can wait to join those of `spawn`. Local.
  [[nodiscard]] ThreadConnector grow() const { return *this; }
};

/// How many ranks `spawn` runs as threads, and how long their calls wait for each other; see `threads`.
struct Threads {
  int count;
  Timeout deadline = default_deadline;
};

namespace detail {

/// Threads in each rank of another connector, which it borrows.
template <Connector Outer>
struct ThreadsIn {
  Threads threads;
  Outer* outer;
};

}  // namespace detail

/// Describes `count` ranks for `spawn`.
/// @throws InvalidArgument unless count >= 1
[[nodiscard]] inline Threads threads(int count, Timeout deadline = default_deadline) {
  if (count < 1) throw InvalidArgument("invalid threads(" + std::to_string(count) + "): must be at least 1");
  return {count, deadline};
}

/// Describes `threads.count` ranks in each rank of `outer` for `spawn`; `outer` must outlive them.
template <Connector Outer>
[[nodiscard]] detail::ThreadsIn<Outer> operator*(Threads threads, Outer& outer) {
  return {threads, &outer};
}

namespace detail {

/// Runs `body(connector)` once for each rank; rank 0 on the calling thread, which MPI may require.
void run_threads(Threads threads, const std::function<void(ThreadConnector)>& body);

}  // namespace detail

/// Runs `f(connector)` once for each rank, each on a thread of this process; blocks until all have returned.
///
/// Rank 0 runs on the calling thread. If a rank throws, the other ranks' waits end with a RevokedError.
///
///     distx::spawn(4, [](distx::ThreadConnector& connector) { distx::ThreadCommunicator comm(connector); … });
///
/// @throws RankFailure with the first exception that a rank threw, and that rank
template <class F>
  requires std::invocable<F&, ThreadConnector&>
void spawn(Threads threads, F&& f) {
  detail::run_threads(threads, [&](ThreadConnector connector) { f(connector); });
}

/// Does the same for `threads(count)`.
template <class F>
  requires std::invocable<F&, ThreadConnector&>
void spawn(int count, F&& f) {
  spawn(threads(count), f);
}

/// Runs `f(connector)` on n threads in each rank of the outer connector, all of them ranks of one connector.
///
/// Collective over the outer connector; blocks until the threads of this process have returned.
/// @throws RankFailure with the first exception that a thread of this process threw
template <Connector Outer, class F>
  requires std::invocable<F&, detail::ProductConnector<ThreadConnector, Outer>&>
void spawn(detail::ThreadsIn<Outer> ranks, F&& f) {
  detail::run_threads(ranks.threads, [&](ThreadConnector connector) {
    detail::ProductConnector<ThreadConnector, Outer> all_ranks(std::move(connector), *ranks.outer);
    f(all_ranks);
  });
}

}  // namespace distx::inline DISTX_ABI
