// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <concepts>
#include <functional>

#include "distx/connect/file/file_connector.hpp"
#include "distx/core/deadline.hpp"

namespace distx::inline DISTX_ABI {

namespace detail::file {

/// See `distx::spawn_processes`. @param grace  what the others have to end after a rank has failed
void run_processes(int count, const std::function<void(FileConnector&)>& f, Timeout deadline, Timeout grace);

}  // namespace detail::file

/// Runs `f(connector)` once for each rank, each in a new process of this host; blocks until all have ended.
///
/// The processes are forked, so each has a copy of the calling thread and of this process's memory, and nothing that it
/// changes comes back. Call it before the process starts other threads, MPI or CUDA. A rank that returns from `f` exits
/// without running destructors of this process's objects. If this process ends, so do the ranks. If a rank fails, the
/// other ranks' waits end; those that have not ended after ten seconds are killed.
///
/// @param deadline  how long the connector's calls wait for the other ranks
/// @throws RankFailure with the first rank that failed, and for each that did so by itself, the message of its
///         exception, its exit status, or the signal that killed it; ConnectError if a process cannot be started
/// @code
/// distx::spawn_processes(4, [](distx::FileConnector& connector) { distx::ShmCommunicator comm(connector); … });
/// @endcode
template <class F>
  requires std::invocable<F&, FileConnector&>
void spawn_processes(int count, F&& f, Timeout deadline = default_deadline) {
  detail::file::run_processes(count, std::ref(f), deadline, std::chrono::seconds(10));
}

}  // namespace distx::inline DISTX_ABI
