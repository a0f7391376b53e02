// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <concepts>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "distx/comm/calls/collectives.hpp"
#include "distx/comm/memory.hpp"

namespace distx::inline DISTX_ABI {

/// The ranks of each group, in the order of their ranks in the group: `{{0, 1}, {2, 3}}`.
using Grouping = std::vector<std::vector<int>>;

namespace detail {

/// The communicators made by `groups`, by grouping; each value points to the type of the caching communicator.
using GroupCache = std::map<Grouping, std::shared_ptr<void>>;

}  // namespace detail

/// A move-only handle on a collective in flight; `Pending` is the library's implementation.
///
/// - `wait()` blocks the host until the collective is complete, and throws if it failed.
/// - `wait(stream)` orders the stream after the collective; the buffers are borrowed until then in stream order.
/// - `test()` returns whether `wait()` would return at once.
///
/// The destructor waits; during stack unwinding it revokes the communicator instead. An empty handle, or one that was
/// waited for, is complete.
template <class P, class Space = Host>
concept PendingCollective =
    std::movable<P> && !std::copyable<P> && requires(P& pending, typename Space::stream stream) {
      pending.wait();
      pending.wait(stream);
      { pending.test() } -> std::same_as<bool>;
    };

namespace calls {

/// Satisfied if `comm.execute(call)` compiles: the communicator supports this collective as a blocking call.
template <class C, class Call>
concept Executes = Collective<Call> && requires(C& comm, const Call& call) { comm.execute(call); };

/// Satisfied if `comm.start(call, after)` compiles: the communicator supports this collective asynchronously, ordered
/// after the work enqueued on the stream `after`.
template <class C, class Call>
concept Starts = Collective<Call> && requires(C& comm, const Call& call, typename Call::space::stream after) {
  { comm.start(call, after) } -> PendingCollective<typename Call::space>;
};

/// Whether communicator C executes `AllReduce` of elements of type T with `Op`.
template <class C, class T, class Op = Sum>
concept HasAllReduce = Executes<C, AllReduce<T, Op, typename C::space>>;
/// Whether communicator C executes `Reduce` of elements of type T with `Op`.
template <class C, class T, class Op = Sum>
concept HasReduce = Executes<C, Reduce<T, Op, typename C::space>>;
/// Whether communicator C executes `ReduceScatter` of elements of type T with `Op`.
template <class C, class T, class Op = Sum>
concept HasReduceScatter = Executes<C, ReduceScatter<T, Op, typename C::space>>;
/// Whether communicator C executes `Broadcast` of elements of type T.
template <class C, class T>
concept HasBroadcast = Executes<C, Broadcast<T, typename C::space>>;
/// Whether communicator C executes `AllGather` of elements of type T.
template <class C, class T>
concept HasAllGather = Executes<C, AllGather<T, typename C::space>>;
/// Whether communicator C executes `AllToAll` of elements of type T.
template <class C, class T>
concept HasAllToAll = Executes<C, AllToAll<T, typename C::space>>;
/// Whether communicator C executes `Gather` of elements of type T.
template <class C, class T>
concept HasGather = Executes<C, Gather<T, typename C::space>>;
/// Whether communicator C executes `Scatter` of elements of type T.
template <class C, class T>
concept HasScatter = Executes<C, Scatter<T, typename C::space>>;
/// Whether communicator C executes point-to-point messages of elements of type T.
template <class C, class T>
concept HasPointToPoint = Executes<C, Send<T, typename C::space>> && Executes<C, Receive<T, typename C::space>> &&
                          Executes<C, SendReceive<T, typename C::space>>;

}  // namespace calls

/// Moves and reduces tensor data among its ranks, in one memory space.
///
/// A communicator is a move-only handle on shared state; `share()` returns another handle on it. One thread uses it at
/// a time. All ranks make the same calls in the same order; blocking and asynchronous calls are ordered separately.
///
/// - `split(color, key)` returns a communicator of the ranks with the same color, ordered by key, then by rank.
///   Collective.
/// - `allocate<T>(n)` returns memory that this communicator transfers fastest. Collective.
/// - `revoke(reason)` makes the current or next call of every rank throw RevokedError with that reason. Not collective.
template <class C>
concept Communicator = std::movable<C> && !std::copyable<C> &&
                       requires(C& comm, const C& fixed, int number, std::size_t bytes, std::string reason) {
                         typename C::space;
                         requires MemorySpace<typename C::space>;
                         { fixed.rank() } -> std::same_as<int>;
                         { fixed.size() } -> std::same_as<int>;
                         { fixed.backend() } -> std::convertible_to<std::string_view>;
                         { comm.split(number, number) } -> std::same_as<C>;
                         { fixed.share() } -> std::same_as<C>;
                         {
                           comm.template allocate<float>(bytes)
                         } -> std::same_as<CommunicatorMemory<float, typename C::space>>;
                         comm.revoke(reason);
                       } && calls::Executes<C, calls::Barrier<typename C::space>>;

}  // namespace distx::inline DISTX_ABI
