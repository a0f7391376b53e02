// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
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
  std::uint64_t number = 0;           ///< in the order of the events on the CommStream; set when it is enqueued
  Deadline deadline{no_timeout};
  std::uint64_t expired_at_look = 0;  ///< set by `check`: the observation from which on it is late
  HostReduction reduction;
  /// Opened by the thread that starts the call, while it is closed; closed by any thread.
  Comparison comparison;
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
    StreamCall* known = take_done(limit);
    if (known == nullptr && ask()) known = take_done(limit);
    if (known != nullptr) return *known;
    auto made = std::make_unique<StreamCall>();
    const std::lock_guard lock(mutex_);
    next_ = std::min(next_ + 1, calls_.size());  // so that those after it, in a ring, were taken before it
    calls_.insert(calls_.begin() + static_cast<std::ptrdiff_t>(next_), std::move(made));
    return begin(*calls_[next_], limit);
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
  /// Makes calls whose comparisons have memory for `ranks` ranks: to allocate it for a call that is being started may
  /// wait for the GPU. Later calls have none until they are compared. Called before the first call.
  void prepare(int ranks) {
    for (std::size_t i = 0; i < unasked; ++i) {
      auto made = std::make_unique<StreamCall>();
      made->comparison.reserve(ranks);
      const std::lock_guard lock(mutex_);
      calls_.push_back(std::move(made));
    }
  }
  /// Gives up the memory: the GPU may still use it.
  void abandon() noexcept { distx::detail::leak(std::move(calls_)); }

 private:
  /// With fewer calls the GPU is not asked: the answer would free too few.
  static constexpr std::size_t unasked = 16;

  /// Whether only a stream waits for an enqueued call.
  [[nodiscard]] static bool is_followed(const StreamCall& call) noexcept {
    return call.holder == StreamCall::Holder::stream && call.stage == StreamCall::CallStage::enqueued;
  }
  /// Takes a call that is known to be free, or returns null. The search begins after the last one that was taken.
  [[nodiscard]] StreamCall* take_done(const Timeout& limit) {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      next_ = next_ + 1 < calls_.size() ? next_ + 1 : 0;
      StreamCall& call = *calls_[next_];
      if (call.holder != StreamCall::Holder::nobody) {
        if (!is_followed(call) || call.in_flight() || call.comparison.difference(true)) continue;  // `check` reports it
        call.reduction.rethrow();
      }
      return &begin(call, limit);
    }
    return nullptr;
  }
  /// Asks the GPU for one call in the middle of those taken longest ago, which takes several calls of CUDA. The answer
  /// holds for all that were enqueued before it on its CommStream. Returns whether they are done.
  [[nodiscard]] bool ask() {
    std::unique_lock lock(mutex_);
    StreamCall* const asked = calls_.size() < unasked ? nullptr : find_middle();
    if (asked == nullptr) return false;
    const std::uint64_t use = asked->use;
    lock.unlock();
    if (!asked->done()) return false;
    lock.lock();
    if (asked->use != use) return false;  // another thread was first
    for (const auto& call : calls_)
      if (is_followed(*call) && call->comm == asked->comm && call->number <= asked->number) call->seen_done = true;
    return true;
  }
  /// Returns a call in flight that only a stream waits for, in the middle of those taken longest ago, or null.
  [[nodiscard]] StreamCall* find_middle() const noexcept {
    const std::size_t size = calls_.size();
    for (std::size_t i = 0; i < size; ++i) {
      StreamCall& call = *calls_[(next_ + size / 2 + size - i) % size];
      if (is_followed(call) && call.in_flight()) return &call;
    }
    return nullptr;
  }
  StreamCall& begin(StreamCall& call, const Timeout& limit) {
    call.comparison.close();
    call.stage = StreamCall::CallStage::posted;
    call.seen_done = call.captured = false;
    call.expired_at_look = 0;
    call.deadline = Deadline(limit);
    ++call.use;
    call.holder = StreamCall::Holder::pending;
    return call;
  }

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<StreamCall>> calls_;
  std::size_t next_ = 0;  ///< the call that was taken last
};

}  // namespace distx::inline DISTX_ABI::nccl::detail
