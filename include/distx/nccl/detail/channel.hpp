// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <bit>

#include "distx/comm/calls/validate.hpp"
#include "distx/core/detail/wait.hpp"
#include "distx/cuda/buffer.hpp"
#include "distx/nccl/detail/ending.hpp"
#include "distx/nccl/detail/handles.hpp"
#include "distx/nccl/detail/host_reduction.hpp"
#include "distx/nccl/detail/open_group.hpp"
#include "distx/nccl/options.hpp"

namespace distx::nccl {

/// NCCL's state of a communicator, once nothing is in progress; ncclInProgress where the wait was ended before.
template <class Stopped>
[[nodiscard]] ncclResult_t settled(ncclComm_t comm, const Timeout& limit, Stopped&& stopped) {
  ncclResult_t state = ncclInProgress;
  detail::wait_until(
      limit,
      [&] {
        const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
        if (asked != ncclSuccess) state = asked;
        return state != ncclInProgress;
      },
      stopped);
  return state;
}

/// One communicator of NCCL's with the stream that its calls go to, and the workspaces that they use in its order.
///
/// Used by one thread at a time: the member's lock is held around its calls.
class Channel {
 public:
  Channel(unique_comm comm, CudaStreamRef on, const RankOf& rank_of, const NcclOptions& how, Ending& ending)
      : stream(on), self(rank_of), options(how), comm_(std::move(comm)), ending_(ending) {}

  [[nodiscard]] ncclComm_t comm() const noexcept { return comm_.native_handle(); }

  template <Collective Call>
  void check(ncclResult_t code, const char* routine, const Call& call) {
    if (code != ncclSuccess) [[unlikely]]
      complete(code, routine, self.context(call));
  }
  /// Waits until what a call has begun is enqueued; in a group that is seen at its end.
  void complete(ncclResult_t code, const char* routine, const ErrorContext& context) {
    nccl::check(code, routine, context, comm());
    if (code != ncclInProgress || depth_ > 0 || open_group != nullptr) return;
    settle(routine, context);
  }
  /// @throws TimeoutError, RevokedError; what NCCL has found
  void settle(const char* routine, const ErrorContext& context) {
    const ncclResult_t state = settled(comm(), options.deadline, [&] { return ending_.hear(), ending_.ended(); });
    if (state == ncclSuccess) return;
    if (ending_.ended()) ending_.raise(context);
    if (state == ncclInProgress)
      throw TimeoutError(std::string(routine) + ": after " + options.deadline.to_string() +
                             " the other ranks have not done their part",
                         context);
    fail(state, routine, context, comm());
  }

  /// Runs `f`, whose calls NCCL takes as one.
  template <Collective Call, class F>
  void grouped(const Call& call, F&& f) {
    check(ncclGroupStart(), "ncclGroupStart", call);
    ++depth_;
    try {
      f();
    } catch (...) {
      --depth_;
      static_cast<void>(ncclGroupEnd());
      throw;
    }
    --depth_;
    check(ncclGroupEnd(), "ncclGroupEnd", call);
  }

  /// Bytes, in the order of the stream, from and to anywhere.
  template <Collective Call>
  void copy(void* to, const void* from, std::size_t bytes, const Call& call) {
    if (bytes != 0 && to != from)
      cuda::detail::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.native_handle()),
                          "cudaMemcpyAsync", self.context(call));
  }
  /// Memory of the GPU, for one call at a time in the order of the stream.
  [[nodiscard]] std::byte* workspace(std::size_t bytes) { return grown(workspaces_, bytes); }
  /// The same of the host.
  [[nodiscard]] std::byte* pinned(std::size_t bytes) { return grown(pinned_, bytes); }

  /// What NCCL has found out by itself.
  [[nodiscard]] ncclResult_t state() const noexcept {
    ncclResult_t found = ncclSuccess;
    if (comm() == nullptr || revoked_) return ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(comm(), &found);
    return asked != ncclSuccess ? asked : found;
  }
  /// Lets it go, and ends what is in flight on this rank. `keep`: so that NCCL can still make a communicator of it,
  /// where it can.
  void end(bool keep) noexcept {
    if (comm() == nullptr || (keep && revoked_)) return;
    if (finalized_)
      unique_finalized_comm::from_native_handle(comm_.release()).reset();
    else if (keep && revoke(comm()))
      revoked_ = true;
    else
      comm_.reset();
  }
  /// Brings it to rest.
  void finalize() noexcept {
    if (comm() == nullptr || revoked_) return;
    const ncclResult_t code = ncclCommFinalize(comm());
    if (code != ncclSuccess && code != ncclInProgress) return;
    const auto state = settled(comm(), options.deadline, [&] { return ending_.hear(), ending_.ended(); });
    finalized_ = state == ncclSuccess;
  }
  /// Leaves the workspaces to what is still running.
  void abandon() noexcept {
    static_cast<void>(new std::vector(std::move(workspaces_)));
    static_cast<void>(new std::vector(std::move(pinned_)));
  }

  const CudaStreamRef stream;
  const RankOf& self;
  const NcclOptions& options;
  HostReduction* reduction = nullptr;  ///< of the call that is being issued
  int capability = 0;                  ///< the ranks' lowest compute capability, as 90 for 9.0

 private:
  template <class Comm>
  static bool revoke(Comm comm) noexcept {
    if constexpr (HasRevoke<Comm>) {
      const ncclResult_t code = ncclCommRevoke(comm, 0);
      if (code != ncclSuccess && code != ncclInProgress) return false;
      return settled(comm, std::chrono::seconds(5), [] { return false; }) != ncclInProgress;
    }
    return false;
  }

  // What has grown too small stays, since calls in flight may use it: in all not more than as much again.
  template <class Memory>
  std::byte* grown(std::vector<Memory>& memories, std::size_t bytes) {
    if (memories.empty() || memories.back().size() < bytes) {
      const std::size_t size = std::bit_ceil(std::max<std::size_t>(bytes, 4096));
      if constexpr (std::same_as<Memory, Buffer<std::byte, Cuda>>)
        memories.emplace_back(size, uninitialized);
      else
        memories.emplace_back(size);
    }
    return memories.back().data();
  }

  unique_comm comm_;
  Ending& ending_;
  std::vector<Buffer<std::byte, Cuda>> workspaces_;
  std::vector<PinnedBuffer<std::byte>> pinned_;
  int depth_ = 0;
  bool revoked_ = false;
  bool finalized_ = false;
};

}  // namespace distx::nccl
