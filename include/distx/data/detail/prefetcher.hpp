// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "distx/core/deadline.hpp"
#include "distx/core/detail/start_thread.hpp"
#include "distx/core/error.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Computes `make(0)`, `make(1)`, …, `make(count - 1)` on worker threads, ahead of the consumer, which takes them in
/// order.
///
/// `make` is called concurrently. At most `ahead` results that were not taken exist or are being computed. Destruction
/// makes no more calls of `make`, and waits for those that are running until the deadline of the latest one. Workers
/// that are stuck longer are abandoned: they own `make`, and end when it returns.
template <class T>
class Prefetcher {
 public:
  using Make = std::function<T(std::size_t)>;
  using Name = std::function<std::string(std::size_t)>;

  /// @param name  returns what a result is made of, for errors
  /// @pre workers >= 1 and ahead >= 1
  /// @throws BackendError if a thread cannot be started
  Prefetcher(std::size_t count, Make make, Name name, std::size_t workers, std::size_t ahead, Timeout deadline,
             const ErrorContext& context)
      : name_(std::move(name)),
        context_(context),
        state_(std::make_shared<State>(count, std::move(make), deadline, ahead)) {
    workers_.reserve(workers);
    try {
      for (std::size_t i = 0; i < workers; ++i) {
        add_working(1);
        workers_.push_back(start_thread([state = state_] { state->work(); }, context));
      }
    } catch (...) {
      add_working(-1);  // the thread that was not started
      stop();
      throw;
    }
  }
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;
  ~Prefetcher() { stop(); }

  /// Returns the next result; nullopt after the last, or after one has failed. Blocks until it is computed.
  /// @throws what `make` threw for this result; TimeoutError
  [[nodiscard]] std::optional<T> next() {
    State& state = *state_;
    std::unique_lock lock(state.mutex);
    if (state.taken == state.count) return std::nullopt;
    LoadedBatch& slot = state.slots[state.taken % state.slots.size()];
    if (!wait(lock, Deadline(state.deadline), [&] { return slot.done; })) fail(state.taken, state.begun > state.taken);
    std::optional<T> value = std::move(slot.value);
    const std::exception_ptr error = std::exchange(slot.error, nullptr);
    slot = LoadedBatch{};
    ++state.taken;
    if (error != nullptr) state.taken = state.begun = state.count;  // nothing follows a failure
    lock.unlock();
    state.room.notify_one();
    if (error != nullptr) std::rethrow_exception(error);
    return value;
  }

 private:
  struct LoadedBatch {
    std::optional<T> value;
    std::exception_ptr error;
    bool done = false;
  };

  /// The state that the workers share with the consumer; an abandoned worker is its last owner.
  struct State {
    State(std::size_t results, Make f, Timeout limit, std::size_t ahead)
        : count(results), make(std::move(f)), deadline(limit), slots(ahead) {}

    void work() {
      std::unique_lock lock(mutex);
      for (;;) {
        room.wait(lock, [&] { return stopping || begun == count || begun < taken + slots.size(); });
        if (stopping || begun == count) {
          --working;
          return finished.notify_one();
        }
        const std::size_t mine = begun++;
        latest = Deadline(deadline);
        lock.unlock();
        LoadedBatch result;
        try {
          result.value.emplace(make(mine));
        } catch (...) {
          result.error = std::current_exception();
        }
        result.done = true;
        lock.lock();
        slots[mine % slots.size()] = std::move(result);
        finished.notify_one();
      }
    }

    const std::size_t count;
    const Make make;
    const Timeout deadline;
    std::mutex mutex;
    std::condition_variable room;      // notifies workers: a result was taken
    std::condition_variable finished;  // notifies the consumer: a result is done, or a worker has ended
    std::vector<LoadedBatch> slots;
    std::size_t begun = 0;
    std::size_t taken = 0;
    int working = 0;              // threads that have not ended
    Deadline latest{no_timeout};  // of the result that was begun last
    bool stopping = false;
  };

  void add_working(int threads) {
    const std::lock_guard lock(state_->mutex);
    state_->working += threads;
  }
  /// @return whether `ready()` became true before the deadline
  template <class Ready>
  bool wait(std::unique_lock<std::mutex>& lock, const Deadline& deadline, Ready&& ready) {
    if (deadline.unlimited()) return state_->finished.wait(lock, ready), true;
    return state_->finished.wait_until(lock, deadline.end(), ready);
  }
  [[noreturn]] void fail(std::size_t result, bool begun) const {
    throw TimeoutError(
        "timed out after " + state_->deadline.to_string() + ": batch " + std::to_string(result) + " (" + name_(result) +
            ") is not made yet: " +
            (begun ? "its worker has not returned from the function that makes it" : "no worker thread has begun it") +
            "; look at the storage that it is read from, or pass a longer .deadline",
        context_, 0, false);
  }

  void stop() noexcept {
    bool ended = false;
    {
      std::unique_lock lock(state_->mutex);
      state_->stopping = true;
      state_->room.notify_all();
      ended = wait(lock, state_->latest, [&] { return state_->working == 0; });
    }
    if (!ended)
      for (auto& worker : workers_) worker.detach();
    workers_.clear();  // joins
  }

  const Name name_;
  const ErrorContext context_;
  const std::shared_ptr<State> state_;
  std::vector<std::jthread> workers_;
};

}  // namespace distx::inline DISTX_ABI::detail
