// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/core/version.hpp"
#include "distx/mpi/detail/backend.hpp"

namespace distx::inline DISTX_ABI::detail::mpi {

/// Waits as `wait_until` does, but sleeps between polls unless `hurried()`: for a thread that moves data while another
/// one computes, perhaps on the same core. A sleep takes a quarter of the time waited so far.
template <class Ready, class Stopped, class Hurried>
WaitEnd wait_beside(const Timeout& timeout, Ready&& ready, Stopped&& stopped, Hurried&& hurried) {
  using std::chrono::microseconds;
  const auto began = Deadline::clock::now();
  const Deadline deadline(timeout, began);
  for (unsigned polls = 1; !hurried(); ++polls) {
    if (ready()) return WaitEnd::ready;
    if (polls % 4 == 0 && stopped()) return ready() ? WaitEnd::ready : WaitEnd::stopped;
    if (deadline.expired()) return ready() ? WaitEnd::ready : WaitEnd::expired;
    const auto waited = std::chrono::duration_cast<microseconds>(Deadline::clock::now() - began);
    std::this_thread::sleep_for(std::clamp(waited / 4, microseconds(50), microseconds(500)));
  }
  if (deadline.unlimited()) return wait_until(timeout, ready, stopped);
  const auto left = std::chrono::duration_cast<Timeout::duration>(deadline.end() - Deadline::clock::now());
  return wait_until(std::max(left, Timeout::duration(0)), ready, stopped);
}

DISTX_INLINE void MpiBackend::execute(const Call<Host>& call) {
  if (revoked()) [[unlikely]]
    revocation_.raise(self_.context(call));
  if (detail::traits_of(call.kind).message) {
    execute_message(call, self_.context(call));
  } else if (self_.size == 1) {
    detail::complete_alone(call);
  } else {
    const std::uint64_t number = blocking_calls_++;
    const bool joined = compares(call);
    if (joined && complete_compared(call, number)) return;
    // MPI's blocking collective has no deadline, so it is used only if every rank has joined or the deadline is
    // unlimited.
    const bool starts = !joined && !options_.deadline.unlimited();
    job_->open(native_handle(), transport_.calls, starts, blocking_queue_.transport().tag(MessageStage::first, number));
    try {  // inlined: few frames between MPI and the caller
      issue(*job_, call);
      if (!job_->idle()) [[unlikely]]
        wait(*job_, self_.context(call), {false, number + 1});
      job_->finish();
    } catch (...) {
      job_->abandon(Job::least_patience, lost());
      throw;
    }
  }
}

DISTX_INLINE bool MpiBackend::complete_compared(const Call<Host>& call, std::uint64_t number) {
  const ErrorContext context = self_.context(call);
  const auto wait = [&](auto&& ready, auto&& overdue) { wait_for(ready, overdue, context, {false, number + 1}); };
  joined_before_ = last_joined_;
  const bool complete = blocking_queue_.join(call, number, context, wait);
  last_joined_ = clock::now();
  if (complete) return true;
  if (transport_.scheduled) {
    blocking_queue_.transfer(call, number, context, wait);
    return true;
  }
  enter_vendor_call(context);
  return false;
}

DISTX_INLINE std::shared_ptr<detail::Operation<Host>> MpiBackend::start(const std::shared_ptr<State>& state,
                                                                        const Call<Host>& call, HostStream) {
  session_->control().try_receive();
  check_usable(self_.context(call));
  if (transport_.threaded && !detail::traits_of(call.kind).message) return tasks_.start(state, call);
  return pool_.start(state, call);
}

DISTX_INLINE void MpiBackend::run_started(const Call<Host>& call) {
  if (self_.size == 1) return execute(call);
  const ErrorContext context = self_.context(call);
  check_usable(context);
  const std::uint64_t number = started_calls_++;
  const auto wait = [&](auto&& ready, auto&& overdue) {
    wait_for(ready, overdue, context, {true, number + 1},
             [this](auto&&... with) { return wait_beside(with..., [this] { return tasks_.awaited(); }); });
  };
  started_queue_.run(call, number, context, wait);
}

}  // namespace distx::inline DISTX_ABI::detail::mpi
