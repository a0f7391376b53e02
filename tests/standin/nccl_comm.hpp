// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "standin/calls.hpp"
#include "standin/nccl_clique.hpp"
#include "standin/runtime.hpp"

// One rank's communicator, and what NCCL's functions share.
namespace standin {

struct Comm {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  int device = 0;
  bool blocking = true;
  std::string name;

  std::atomic<bool> stopped{false};  ///< its operations end without having done anything
  std::atomic<bool> revoked{false};
  std::atomic<bool> finalized{false};
  std::atomic<int> jobs{0};       ///< in the background: the state is ncclInProgress
  std::atomic<int> running{0};    ///< operations on the streams
  std::atomic<int> in_graphs{0};  ///< captured operations: NCCL ends no communicator that has some
  std::atomic<ncclResult_t> error{ncclSuccess};
  std::atomic<bool> proxy_failed{false};  ///< its network thread has ended by an error, which nothing clears
  std::atomic<bool> used{false};          ///< has had operations
  std::atomic<unsigned> issued{0};        ///< groups of operations
  std::atomic<bool> unasked{false};       ///< in progress until its state is asked for

  std::mutex mutex;  ///< of what follows
  Point last;        ///< after all that was enqueued
  std::uint64_t children = 0;
  std::uint64_t windows = 0;
  Connections connections;

  std::uint64_t collectives = 0;  ///< that have begun; under the clique's mutex

  [[nodiscard]] bool hangs() const;
};

/// The words that ncclGetLastError gives.
void remember(const char* function, ncclResult_t code);

template <class F>
ncclResult_t nccl_called(const char* function, F&& f) {
  const auto code = called<ncclResult_t>(function, [&] {
    try {
      std::forward<F>(f)();
    } catch (const Failure<cudaError_t>&) {
      fail(ncclUnhandledCudaError);
    }
  });
  if (code != ncclSuccess && code != ncclInProgress) remember(function, code);
  return code;
}

/// The code of calls that make something of a communicator: NCCL returns success for one that does not block while they
/// are in progress, and only the communicator's state tells.
[[nodiscard]] constexpr ncclResult_t said_early(ncclResult_t code) noexcept {
  return code == ncclInProgress ? ncclSuccess : code;
}

/// The communicator of a handle. Ends the call where there is none.
[[nodiscard]] std::shared_ptr<Comm> comm_of(ncclComm_t handle);
/// Ends the call where the communicator cannot be used: an earlier call is in progress, or it has met an error.
void ensure_ready(const Comm& comm);
/// Whether the operations need a connection that is not there yet.
[[nodiscard]] bool needs_connecting(const Comm& comm, const std::vector<Op>& ops);
/// Connects what the operations need and was not connected before, together with the other ranks.
ncclResult_t connect(Comm& comm, const std::vector<Op>& ops);
/// Takes part in the group of this thread, or runs alone.
void launch(const std::shared_ptr<Comm>& comm, cudaStream_t stream, Op op);
/// Runs what takes the ranks' meeting: at once, at the end of a group, or in the background of communicators that do
/// not block. Throws ncclInProgress if it is in progress.
void launch_job(const std::vector<std::shared_ptr<Comm>>& comms, std::function<ncclResult_t()> job);
/// The thread's group, if there is one, has met an error.
void note_in_group(ncclResult_t code);
/// Waits until nothing of a communicator's is on a stream, other work on that stream before it included.
void wait_for_operations(const Comm& comm);
/// And nothing is in progress in the background.
void wait_until_idle(const Comm& comm);
/// Waits until the graphs that have operations of a communicator are destroyed.
void wait_for_graphs(const Comm& comm);
/// An operator of ncclRedOpCreatePreMulSum's, or a built-in one.
void set_operator(Op& op, ncclRedOp_t handle, ncclComm_t comm);
[[nodiscard]] std::size_t live_operators();
/// Drops the registrations of a communicator.
void drop_registrations(ncclComm_t comm);
[[nodiscard]] std::size_t live_windows();
[[nodiscard]] std::size_t live_communicators();

}  // namespace standin
