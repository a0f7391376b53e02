// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "distx/comm/pending.hpp"
#include "distx/comm/runtime/communicator_state.hpp"
#include "distx/comm/runtime/operation_pool.hpp"
#include "distx/core/deadline.hpp"
#include "distx/cuda/event.hpp"
#include "distx/cuda/space.hpp"
#include "distx/nccl/detail/comparison.hpp"
#include "distx/nccl/detail/handles.hpp"
#include "distx/nccl/detail/host_reduction.hpp"

namespace distx::inline DISTX_ABI::nccl::detail {

class CommStream;
class NcclBackend;

/// An asynchronous call on a stream; reused once it is done.
struct StreamCall final : distx::detail::Operation<Cuda> {
  enum class Holder {
    nobody,
    pending,  ///< its Pending
    stream,   ///< only a stream waits for it
  };
  enum class CallStage {
    posted,    ///< not yet passed to NCCL
    issued,    ///< passed to NCCL, which has not enqueued it yet
    enqueued,  ///< `event` marks its end
  };

  CudaEvent event;  ///< first marks what comes before the call, then its end
  CommStream* comm = nullptr;
  std::atomic<CallStage> stage{CallStage::posted};
  std::atomic<Holder> holder{Holder::nobody};
  std::atomic<bool> seen_done{false};
  std::atomic<bool> captured{false};  ///< recorded in a CUDA graph: its event is not asked for
  std::uint64_t use = 0;              ///< counts the calls it has stood for
  std::uint64_t number = 0;           ///< counts the calls of the communicator
  Deadline deadline{no_timeout};
  std::uint64_t expired_at_look = 0;  ///< set by `check`: the observation from which on it is late
  HostReduction reduction;
  Comparison comparison;  ///< changed under the pool's lock, or while it is closed
  distx::detail::CommunicatorState<NcclBackend>* state = nullptr;  ///< kept alive by the Pending
  ErrorContext context;
  std::vector<std::shared_ptr<void>> owners;

  bool test() noexcept override;
  void complete() override;
  void complete(CudaStreamRef stream) override;
  void abandon() noexcept override;
  void keep(std::shared_ptr<void> owner) override { owners.push_back(std::move(owner)); }

  /// Whether the GPU is not known to have done it.
  [[nodiscard]] bool in_flight() const noexcept {
    return holder != Holder::nobody && stage != CallStage::posted && !seen_done && !captured;
  }
  /// Frees what the call keeps alive, unless the GPU may still use it.
  void release_owners() noexcept {
    try {
      if (stage == CallStage::enqueued && !done()) return distx::detail::leak(std::move(owners));
    } catch (const Error&) {
      // A GPU that has failed does nothing more.
    }
    owners.clear();
  }
  [[nodiscard]] bool done() const { return stage == CallStage::enqueued && (captured || seen_done || event.done()); }
};

/// Gives a call to another holder at the end of the scope.
class HolderChange {
 public:
  HolderChange(StreamCall& call, StreamCall::Holder holder) noexcept : call_(call), holder_(holder) {}
  HolderChange(const HolderChange&) = delete;
  HolderChange& operator=(const HolderChange&) = delete;
  ~HolderChange() { call_.holder = holder_; }

 private:
  StreamCall& call_;
  StreamCall::Holder holder_;
};

/// The asynchronous calls of a communicator. Pointers stay valid while it lives. Thread-safe; no CUDA function is
/// called under its lock.
class StreamCallPool {
 public:
  /// Returns a call that nobody waits for and that the GPU has done; its holder is now `pending`.
  /// @throws what a user's op threw in a call that only a stream waited for
  [[nodiscard]] StreamCall& take(const Timeout& limit) {
    for (StreamCall* const call : candidates()) {
      if (call == nullptr || call->holder == StreamCall::Holder::pending) continue;
      const auto before = call->holder.load();
      if (before == StreamCall::Holder::stream && !call->done()) continue;
      const std::lock_guard lock(mutex_);
      if (call->holder != before ||
          (before == StreamCall::Holder::stream && call->stage != StreamCall::CallStage::enqueued))
        continue;  // another thread was first
      if (before == StreamCall::Holder::stream && call->comparison.difference(true)) continue;  // `check` reports it
      if (before == StreamCall::Holder::stream) call->reduction.rethrow();
      return begin(*call, limit);
    }
    auto made = std::make_unique<StreamCall>();
    const std::lock_guard lock(mutex_);
    calls_.push_back(std::move(made));
    return begin(*calls_.back(), limit);
  }
  /// Returns call number `i`, or null past the last.
  [[nodiscard]] StreamCall* at(std::size_t i) const noexcept {
    const std::lock_guard lock(mutex_);
    return i < calls_.size() ? calls_[i].get() : nullptr;
  }
  /// Calls `f` under the lock.
  template <class F>
  void for_each(F&& f) noexcept {
    const std::lock_guard lock(mutex_);
    for (const auto& call : calls_) f(*call);
  }
  /// Which use of a call this is.
  [[nodiscard]] std::uint64_t use_of(const StreamCall& call) const noexcept {
    const std::lock_guard lock(mutex_);
    return call.use;
  }
  /// Takes note that the GPU has done a call, or has failed, if it still stands for the same use.
  void see_done(StreamCall& call, std::uint64_t use, bool failed) noexcept {
    const std::lock_guard lock(mutex_);
    if (call.use != use) return;
    if (failed) call.comparison.close();
    call.seen_done = true;
  }
  /// Whether the GPU has done all calls that were enqueued, and none is about to be.
  [[nodiscard]] bool done() const {
    for (std::size_t i = 0; const StreamCall* const call = at(i); ++i) {
      if (call->stage == StreamCall::CallStage::posted) continue;
      if (!call->done()) return false;
    }
    return true;
  }
  /// Makes `count` calls whose comparisons have memory for `ranks` ranks: allocating it later may wait for the GPU.
  void prepare(int count, int ranks) {
    for (int i = 0; i < count; ++i) {
      auto made = std::make_unique<StreamCall>();
      made->comparison.reserve(ranks);
      const std::lock_guard lock(mutex_);
      calls_.push_back(std::move(made));
    }
  }
  /// Gives up the memory: the GPU may still use it.
  void abandon() noexcept { distx::detail::leak(std::move(calls_)); }

 private:
  /// Returns calls that may be free, or null: one that is known to be, and for each of two CommStreams the oldest that
  /// the GPU has to be asked for. It does the calls of a CommStream in order, so there is no need to ask for others.
  [[nodiscard]] std::array<StreamCall*, 3> candidates() const noexcept {
    std::array<StreamCall*, 3> found{};
    const std::lock_guard lock(mutex_);
    for (const auto& call : calls_) {
      const auto holder = call->holder.load();
      if (holder == StreamCall::Holder::pending) continue;
      if (holder == StreamCall::Holder::nobody ||
          (call->stage == StreamCall::CallStage::enqueued && !call->in_flight())) {
        found[0] = call.get();
        break;
      }
      StreamCall*& oldest = found[1] == nullptr || found[1]->comm == call->comm ? found[1] : found[2];
      if (oldest == nullptr || call->number < oldest->number) oldest = call.get();
    }
    return found;
  }
  StreamCall& begin(StreamCall& call, const Timeout& limit) {
    call.comparison.close();
    call.stage = StreamCall::CallStage::posted;
    call.seen_done = call.captured = false;
    call.expired_at_look = 0;
    call.deadline = Deadline(limit);
    ++call.use;
    call.number = ++taken_;
    call.holder = StreamCall::Holder::pending;
    return call;
  }

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<StreamCall>> calls_;
  std::uint64_t taken_ = 0;
};

}  // namespace distx::inline DISTX_ABI::nccl::detail
