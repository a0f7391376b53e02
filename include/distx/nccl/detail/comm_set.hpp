// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>

#include "distx/cuda/detail/check.hpp"
#include "distx/nccl/detail/comm_stream.hpp"
#include "distx/nccl/detail/profiler_range.hpp"

namespace distx::inline DISTX_ABI::nccl::detail {

/// The communicators of NCCL that one of distx consists of, in the order in which they are made: calls that may pass
/// each other are on different ones.
struct Comms {
  nccl_unique_comm blocking;
  nccl_unique_comm started;
  nccl_unique_comm messages;
  nccl_unique_comm spare;  ///< never used, so that `shrink` works after a failure; only with NcclOptions::shrinkable
};

/// Makes a GPU current until the scope ends; ignores errors, for destructors and failure paths.
class QuietDeviceGuard {
 public:
  explicit QuietDeviceGuard(int device) noexcept : before_(device) {
    static_cast<void>(cudaGetDevice(&before_));
    static_cast<void>(cudaSetDevice(device));
  }
  QuietDeviceGuard(const QuietDeviceGuard&) = delete;
  QuietDeviceGuard& operator=(const QuietDeviceGuard&) = delete;
  ~QuietDeviceGuard() { static_cast<void>(cudaSetDevice(before_)); }

 private:
  int before_;
};

/// One rank's three CommStreams, and the lock around all calls of NCCL on them.
class CommSet {
 public:
  CommSet(Comms comms, const calls::RankOf& self, const NcclOptions& options, RevocationState& revocation)
      : blocking(std::move(comms.blocking), blocking_stream_of(self, options), self, options, revocation, mutex_),
        started(std::move(comms.started), options.stream.value_or(started_stream_), self, options, revocation, mutex_),
        messages(std::move(comms.messages), options.stream.value_or(message_stream_), self, options, revocation,
                 mutex_),
        spare_(std::move(comms.spare)),
        options_(options),
        revocation_(revocation) {
    if (profiler_domain() != nullptr) distx::detail::label_observer = &show_label;
    // Allocations may wait for calls in flight: what small calls need is allocated now.
    for (CommStream* const comm : {&blocking, &started}) {
      static_cast<void>(comm->workspace(1));
      static_cast<void>(comm->pinned(1));
    }
  }
  CommSet(const CommSet&) = delete;
  CommSet& operator=(const CommSet&) = delete;
  ~CommSet() { end(); }

  /// Waits until `comm`, and others on the same stream, take a call.
  /// @throws TimeoutError, and what has revoked the communicator
  [[nodiscard]] CommStreamUse use(CommStream& comm, const ErrorContext& context) {
    return {comm, lock_when([&] { return takes_call(comm); }, context)};
  }
  /// The same, without waiting: null if it takes no call now.
  [[nodiscard]] std::unique_ptr<CommStreamUse> try_use(CommStream& comm) {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock() || !takes_call(comm)) return nullptr;
    return std::make_unique<CommStreamUse>(comm, std::move(lock));
  }
  /// Waits until all three take a call.
  [[nodiscard]] std::unique_lock<std::mutex> lock_all(const ErrorContext& context) {
    return lock_when([&] { return blocking.at_rest() && started.at_rest() && messages.at_rest(); }, context);
  }
  [[nodiscard]] std::unique_lock<std::mutex> locked() { return std::unique_lock(mutex_); }
  [[nodiscard]] std::unique_lock<std::mutex> try_locked() { return std::unique_lock(mutex_, std::try_to_lock); }
  /// Whether NCCL has enqueued all calls on `comm`.
  [[nodiscard]] bool enqueued(CommStream& comm) {
    const std::lock_guard lock(mutex_);
    return comm.enqueued();
  }

  /// Calls `f` with the communicator that smaller ones are made of: the spare one, if there is one, else the blocking
  /// calls', which is null after a failure. Meanwhile nothing else is issued on it, and it is not ended; no lock is
  /// held that calls on others need.
  template <class F>
  decltype(auto) with_parent(const ErrorContext& context, F&& f) {
    const std::lock_guard parent(parent_mutex_);
    if (spare_ || blocking.comm() == nullptr) return f(spare_.native_handle());
    CommStreamUse exclusive = use(blocking, context);
    exclusive.unlock();
    return f(blocking.comm());
  }

  /// The stream after whose work blocking calls run.
  [[nodiscard]] CudaStreamRef user_stream() const noexcept { return options_.stream.value_or(CudaStreamRef()); }
  /// Orders the next blocking collective after the work on the user's stream.
  /// @pre `blocking` is in use
  void follow_user() {
    if (blocking.stream == user_stream()) return;
    submitted_.record(user_stream());
    blocking.stream.wait(submitted_);
  }
  /// A stream that only this communicator uses.
  [[nodiscard]] CudaStreamRef own_stream() const noexcept { return message_stream_; }

  /// Revokes the communicator if NCCL has met an error.
  /// @pre the lock is held
  void find_failures() noexcept {
    for (CommStream* const comm : {&blocking, &started, &messages}) comm->find_failure();
  }
  /// Brings all three to rest, so that `end` destroys and does not abort them.
  void finalize() noexcept {
    for (CommStream* const comm : {&messages, &started, &blocking}) comm->finalize();
  }
  /// Ends all three, each on a separate thread: NCCL may wait for the GPU in one, and so for calls of the others, and
  /// on a thread with an open group it would only take note. Calls no CUDA function before NCCL's.
  void end() noexcept {
    std::array<CommEnd, 3> ends;
    std::size_t count = 0;
    {
      const std::scoped_lock locks(parent_mutex_, mutex_);
      for (CommStream* const comm : {&blocking, &started, &messages})
        if (const CommEnd end = comm->release(); end.comm != nullptr) ends[count++] = end;
    }
    if (count != 0) end_in_time({ends.data(), count});
  }
  void abandon() noexcept {
    for (CommStream* const comm : {&blocking, &started, &messages}) comm->abandon();
  }

 private:
  // Not the user's: work of other threads that is enqueued there would wait for a collective, and so for other ranks.
  [[nodiscard]] CudaStreamRef blocking_stream_of(const calls::RankOf& self, const NcclOptions& options) const noexcept {
    return options.stream.value_or(self.size > 1 ? blocking_stream_.ref() : CudaStreamRef());
  }

  static constexpr int first_to_run = -100;  // CUDA takes its highest priority instead of a higher one

  std::mutex mutex_;
  std::mutex parent_mutex_;  ///< locked before `mutex_`
  CudaStream blocking_stream_;
  CudaEvent submitted_;                      ///< marks the work before a blocking collective
  CudaStream started_stream_{first_to_run};  // else a backward pass that fills the GPU holds up its own reductions
  CudaStream message_stream_;

 public:
  CommStream blocking;  ///< blocking collectives
  CommStream started;   ///< asynchronous collectives
  CommStream messages;

 private:
  [[nodiscard]] bool takes_call(const CommStream& comm) {
    for (CommStream* const other : {&blocking, &started, &messages})
      if ((other == &comm || other->stream == comm.stream) && !other->at_rest()) return false;
    return true;
  }
  template <class Ready>
  std::unique_lock<std::mutex> lock_when(Ready&& ready, const ErrorContext& context) {
    std::unique_lock lock(mutex_, std::defer_lock);
    distx::detail::wait_until(
        options_.deadline,
        [&] {
          if (!lock.owns_lock()) lock.lock();
          if (ready()) return true;
          lock.unlock();
          return false;
        },
        [&] { return revocation_.poll(), revocation_.revoked(); });
    if (revocation_.revoked()) revocation_.raise(context);
    if (!lock.owns_lock()) throw TimeoutError(timed_out_after(options_.deadline), context);
    return lock;
  }

  nccl_unique_comm spare_;
  const NcclOptions& options_;
  RevocationState& revocation_;
};

}  // namespace distx::inline DISTX_ABI::nccl::detail
