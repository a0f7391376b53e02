// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <bit>

#include "distx/comm/calls/validate.hpp"
#include "distx/core/detail/wait.hpp"
#include "distx/cuda/buffer.hpp"
#include "distx/nccl/detail/open_group.hpp"
#include "distx/nccl/detail/revocation_state.hpp"
#include "distx/nccl/detail/stream_call.hpp"
#include "distx/nccl/options.hpp"

namespace distx::inline DISTX_ABI::nccl::detail {

/// Waits for NCCL to finish what is in progress on a communicator, and returns its state: ncclInProgress if the wait
/// ended before.
template <class Stopped>
[[nodiscard]] ncclResult_t settled(ncclComm_t comm, const Timeout& limit, Stopped&& stopped) {
  ncclResult_t state = ncclInProgress;
  distx::detail::wait_until(
      limit,
      [&] {
        const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
        if (asked != ncclSuccess) state = asked;
        return state != ncclInProgress;
      },
      stopped);
  return state;
}

/// One of NCCL's communicators, the stream that its calls go to, and the workspaces that they use in its order.
///
/// Its functions are called under the communicator's lock. A call of a communicator that does not block may be in
/// progress when it returns: NCCL enqueues it once it has connected, and takes no other call before.
class CommStream {
 public:
  CommStream(nccl_unique_comm comm, CudaStreamRef on, const calls::RankOf& rank_of, const NcclOptions& how,
             RevocationState& state, std::mutex& mutex)
      : stream(on), self(rank_of), options(how), comm_(std::move(comm)), revocation_(state), mutex_(mutex) {}

  [[nodiscard]] ncclComm_t comm() const noexcept { return comm_.native_handle(); }

  void check(ncclResult_t code, const char* routine, const ErrorContext& context) {
    if (code != ncclSuccess) [[unlikely]]
      complete(code, routine, context);
  }
  /// Takes note of a call that is in progress; in a group that is seen at its end.
  void complete(ncclResult_t code, const char* routine, const ErrorContext& context) {
    nccl::detail::check(code, routine, context, comm());
    if (code == ncclInProgress && depth_ == 0 && open_group == nullptr) in_progress_ = true;
  }
  /// Whether NCCL has enqueued all calls. An error that it met revokes the communicator.
  [[nodiscard]] bool enqueued() {
    if (!in_progress_) return true;
    const ncclResult_t found = comm() == nullptr ? ncclSuccess : state();
    if (found == ncclInProgress) return false;
    in_progress_ = false;
    if (found != ncclSuccess)
      note_failure(found);
    else
      record_issued();
    return true;
  }
  /// Waits until NCCL has enqueued all calls, without the lock meanwhile.
  /// @throws TimeoutError, and what has revoked the communicator
  void settle(const char* routine, const ErrorContext& context) {
    if (!enqueued()) {
      user_->unlock();
      const auto end = distx::detail::wait_until(
          options.deadline,
          [&] {
            const std::lock_guard lock(mutex_);
            return enqueued();
          },
          [&] { return revocation_.poll(), revocation_.revoked(); });
      user_->lock();
      if (end == distx::detail::WaitEnd::expired && !revocation_.revoked())
        throw TimeoutError(std::string(routine) + ": " + timed_out_after(options.deadline), context);
    }
    if (revocation_.revoked()) revocation_.raise(context);
  }
  /// Settles a call that returns success while it is in progress.
  void settle_early_success(const char* routine, const ErrorContext& context) {
    in_progress_ = true;
    settle(routine, context);
  }

  /// Runs `f`, whose calls NCCL takes as one.
  template <class F>
  void grouped(const ErrorContext& context, F&& f) {
    settle_before("ncclGroupStart", context);
    check(ncclGroupStart(), "ncclGroupStart", context);
    ++depth_;
    try {
      f();
    } catch (...) {
      --depth_;
      static_cast<void>(ncclGroupEnd());
      throw;
    }
    --depth_;
    check(ncclGroupEnd(), "ncclGroupEnd", context);
  }

  /// Copies bytes, stream-ordered, between any memories.
  void copy(void* to, const void* from, std::size_t bytes, const ErrorContext& context) {
    if (bytes == 0 || to == from) return;
    settle_before("cudaMemcpyAsync", context);
    cuda::detail::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.native_handle()), "cudaMemcpyAsync",
                        context);
  }
  /// Waits until what was issued before is on the stream, so that the next step comes after it.
  void settle_before(const char* routine, const ErrorContext& context) {
    if (in_progress_ && depth_ == 0 && open_group == nullptr) settle(routine, context);
  }
  /// Takes note of an asynchronous call that has been issued whole.
  void issued(StreamCall& call) {
    call.stage = StreamCall::CallStage::issued;
    issued_.push_back(&call);
    if (!in_progress_) record_issued();
  }
  /// Returns GPU memory for one call at a time, stream-ordered.
  [[nodiscard]] std::byte* workspace(std::size_t bytes) { return grown(workspaces_, bytes); }
  /// Returns pinned host memory likewise.
  [[nodiscard]] std::byte* pinned(std::size_t bytes) { return grown(pinned_, bytes); }

  /// Returns the state that NCCL reports, with errors of its background work.
  [[nodiscard]] ncclResult_t state() const noexcept {
    ncclResult_t found = ncclSuccess;
    if (comm() == nullptr) return ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(comm(), &found);
    return asked != ncclSuccess ? asked : found;
  }
  /// Revokes the communicator if NCCL has met an error.
  void find_failure() noexcept {
    if (user_ != nullptr) return;  // the call that uses it looks itself
    const ncclResult_t found = state();
    if (found != ncclSuccess && found != ncclInProgress) note_failure(found);
  }
  /// Hands over NCCL's communicator and how it is to be ended; null if there is none.
  [[nodiscard]] CommEnd release() noexcept {
    for (StreamCall* const call : issued_) call->stage = StreamCall::CallStage::posted;  // they will not be enqueued
    issued_.clear();
    in_progress_ = false;
    return {comm_.release(), finalized_ ? ncclCommDestroy : ncclCommAbort};
  }
  /// Brings it to rest, so that it can be destroyed.
  void finalize() noexcept {
    if (comm() == nullptr) return;
    const auto stopped = [&] { return revocation_.poll(), revocation_.revoked(); };
    if (in_progress_ && settled(comm(), options.deadline, stopped) != ncclSuccess) return;
    const ncclResult_t code = ncclCommFinalize(comm());
    if (code != ncclSuccess && code != ncclInProgress) return;
    finalized_ = settled(comm(), options.deadline, stopped) == ncclSuccess;
  }
  /// Gives up the workspaces: the GPU may still use them.
  void abandon() noexcept {
    distx::detail::leak(std::move(workspaces_));
    distx::detail::leak(std::move(pinned_));
  }
  /// Whether the next call can be issued.
  [[nodiscard]] bool at_rest() { return user_ == nullptr && enqueued(); }

  const CudaStreamRef stream;
  const calls::RankOf& self;
  const NcclOptions& options;
  HostReduction* reduction = nullptr;  ///< of the call that is being issued
  int capability = 0;                  ///< the ranks' lowest compute capability, as 90 for 9.0

 private:
  friend class CommStreamUse;

  void record_issued() {
    for (StreamCall* const call : issued_) {
      call->event.record(stream);
      call->number = ++recorded_;
      call->stage = StreamCall::CallStage::enqueued;
    }
    issued_.clear();
  }
  void note_failure(ncclResult_t found) noexcept {
    using Cause = RevocationState::Cause;
    const auto cause = found == ncclRemoteError ? Cause::rank_failure
                       : found == timeout_code  ? Cause::timeout
                                                : Cause::error;
    try {
      revocation_.revoke(cause, "NCCL: " + words_of(found, comm()), static_cast<int>(found));
    } catch (...) {
      revocation_.revoke(cause, "", static_cast<int>(found));
    }
  }
  // Outgrown memory is kept, since calls in flight may use it: in all at most as much again.
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

  nccl_unique_comm comm_;
  RevocationState& revocation_;
  std::mutex& mutex_;
  std::unique_lock<std::mutex>* user_ = nullptr;  ///< of the call that is issuing its steps
  std::vector<StreamCall*> issued_;
  std::vector<Buffer<std::byte, Cuda>> workspaces_;
  std::vector<cuda::PinnedBuffer<std::byte>> pinned_;
  std::uint64_t recorded_ = 0;  ///< how many calls it has enqueued
  int depth_ = 0;
  bool in_progress_ = false;
  bool finalized_ = false;
};

/// The right of one call to issue its steps on a CommStream. The lock is dropped while a step waits for NCCL.
class CommStreamUse {
 public:
  /// @param lock on the communicator's mutex; empty inside an NcclGroup, whose GroupLock holds it
  CommStreamUse(CommStream& comm, std::unique_lock<std::mutex> lock) noexcept : comm_(comm), lock_(std::move(lock)) {
    if (lock_.owns_lock()) comm_.user_ = &lock_;
  }
  CommStreamUse(const CommStreamUse&) = delete;
  CommStreamUse& operator=(const CommStreamUse&) = delete;
  ~CommStreamUse() {
    if (lock_.mutex() == nullptr) return;
    if (!lock_.owns_lock()) lock_.lock();
    comm_.user_ = nullptr;
  }
  /// Drops the lock until the end of the scope; no other call uses the CommStream meanwhile.
  void unlock() { lock_.unlock(); }

 private:
  CommStream& comm_;
  std::unique_lock<std::mutex> lock_;
};

}  // namespace distx::inline DISTX_ABI::nccl::detail
