// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "distx/comm/calls/collectives.hpp"
#include "distx/comm/pending.hpp"
#include "distx/comm/runtime/progress_thread.hpp"
#include "distx/core/detail/leak.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The operations of one communicator, reused so that only the first call of a kind allocates.
template <class Op>
class OperationPool {
 public:
  template <class... Arguments>
  [[nodiscard]] std::shared_ptr<Op> take(Arguments&&... arguments) {
    if (idle_.empty()) {
      idle_.reserve(all_.size() + 1);  // so that `give_back` cannot fail
      idle_.push_back(all_.emplace_back(std::make_shared<Op>(std::forward<Arguments>(arguments)...)));
    }
    auto operation = std::move(idle_.back());
    idle_.pop_back();
    return operation;
  }
  /// Takes an operation, which refers to `state`, and begins a call with it. The result keeps the state alive.
  template <class State>
  [[nodiscard]] std::shared_ptr<Op> start(const std::shared_ptr<State>& state, const Call<Host>& call) {
    const auto operation = take(*state);
    try {
      operation->begin(call);
    } catch (...) {
      operation->recycle();
      throw;
    }
    return {state, operation.get()};
  }
  void give_back(const Op& operation) noexcept { idle_.push_back(*find(operation)); }
  /// Removes an operation and everything it owns from use until the process exits.
  void abandon(const Op& operation) noexcept {
    const auto found = find(operation);
    leak(std::move(*found));
    all_.erase(found);
  }

 private:
  [[nodiscard]] auto find(const Op& operation) noexcept {
    return std::find_if(all_.begin(), all_.end(), [&](const auto& other) { return other.get() == &operation; });
  }

  std::vector<std::shared_ptr<Op>> all_, idle_;
};

template <class State>
class TaskRunner;

/// An asynchronous collective on a TaskRunner.
template <class State>
class TaskOperation final : public ProgressTask, public Operation<Host> {
 public:
  explicit TaskOperation(State& state) noexcept : state_(state) {}

  void set(const Call<Host>& call) noexcept {
    reset();
    flight_ = state_.flight.latest();
    call_ = call;
  }
  void run() override {
    FlightScope flight(flight_.begin());
    state_.guarded([&] { state_.backend.run_started(call_); });
    flight.complete();
  }
  bool test() noexcept override { return done(); }
  void complete() override {
    state_.backend.tasks().wait(*this);
    rethrow();
  }
  void abandon() noexcept override {
    state_.backend.revoke(abandoned_by_exception);
    state_.backend.tasks().wait(*this);  // a revocation ends this wait
  }
  void recycle() noexcept override { state_.backend.tasks().give_back(*this); }

 private:
  State& state_;  // kept alive by the Pending
  Call<Host> call_;
  FlightTicket flight_;
};

/// Runs a communicator's asynchronous collectives on one progress thread, in the order of their start.
///
/// It is the last member of a backend, so the thread is joined before anything that its tasks use is destroyed. The
/// backend has `tasks()`, which returns it, and `run_started(call)`, which makes a blocking call on the asynchronous
/// queue.
template <class State>
class TaskRunner {
 public:
  [[nodiscard]] std::shared_ptr<Operation<Host>> start(const std::shared_ptr<State>& state, const Call<Host>& call) {
    auto operation = pool_.take(*state);
    operation->set(call);
    if (state->backend.self().size == 1) {
      progress_.run_here(*operation);
    } else {
      progress_.submit(operation);
    }
    return {state, operation.get()};
  }
  void wait(const TaskOperation<State>& operation) { progress_.wait(operation); }
  /// Returns whether a thread waits for a call.
  [[nodiscard]] bool awaited() const noexcept { return progress_.awaited(); }
  void give_back(const TaskOperation<State>& operation) noexcept { pool_.give_back(operation); }

 private:
  OperationPool<TaskOperation<State>> pool_;
  ProgressThread progress_;
};

}  // namespace distx::inline DISTX_ABI::detail
