// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/core/detail/inline.hpp"
#include "distx/mpi/detail/backend.hpp"

namespace distx::detail::mpi {

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
    job_->open(native_handle(), transport_.calls, starts, tag_of(number, TagClass::blocking_pieces));
    try {  // inlined: few frames between MPI and the caller
      issue(*job_, call);
      if (!job_->idle()) [[unlikely]]
        wait(*job_, self_.context(call), {false, number + 1});
      job_->finish();
    } catch (...) {
      job_->abandon(Job::a_moment, lost());
      throw;
    }
  }
}

DISTX_INLINE bool MpiBackend::complete_compared(const Call<Host>& call, std::uint64_t number) {
  const ErrorContext context = self_.context(call);
  const auto wait = [&](auto&& ready, auto&& overdue) {
    wait_for(ready, overdue, context, blocking_pulse_, {false, number + 1});
  };
  joined_before_ = last_joined_;
  const bool complete = blocking_queue_.join(call, tag_of(number, TagClass::blocking_exchange), context, wait);
  last_joined_ = clock::now();
  if (complete) return true;
  if (schedules()) {
    blocking_queue_.transfer(call, tag_of(number, TagClass::blocking_pieces), context, wait);
    return true;
  }
  enter_vendor_call(context);
  return false;
}

DISTX_INLINE std::shared_ptr<detail::Operation<Host>> MpiBackend::start(const std::shared_ptr<State>& state,
                                                                        const Call<Host>& call, HostStream) {
  session_->control().look();
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
    wait_for(ready, overdue, context, started_pulse_, {true, number + 1},
             [this](auto&&... with) { return wait_beside(with..., [this] { return tasks_.awaited(); }); });
  };
  if (!started_queue_.join(call, tag_of(number, TagClass::started_exchange), context, wait))
    started_queue_.transfer(call, tag_of(number, TagClass::started_pieces), context, wait);
}

}  // namespace distx::detail::mpi
