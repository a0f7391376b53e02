// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/core/detail/revocation_reason.hpp"
#include "distx/nccl/detail/backend.hpp"

// The members of asynchronous calls, and of NcclBackend those that observe them or end a group.
namespace distx::inline DISTX_ABI::nccl::detail {

inline bool StreamCall::test() noexcept { return state->backend.test(*this); }
inline void StreamCall::complete() {
  try {
    state->guarded([&] { state->backend.finish(*this, context); });
  } catch (...) {
    release_owners();
    throw;
  }
  owners.clear();
}
inline void StreamCall::complete(CudaStreamRef stream) {
  try {
    state->guarded([&] { state->backend.follow(*this, stream, context); });
  } catch (...) {
    release_owners();
    throw;
  }
  owners.clear();  // freeing them is stream-ordered
}
inline void StreamCall::abandon() noexcept {
  state->backend.revoke(distx::detail::abandoned_by_exception);
  holder = Holder::stream;
  release_owners();
}

inline bool NcclBackend::check() noexcept {
  bool any = false, late = false;
  calls_.for_each([&](StreamCall& call) {
    if (const auto found = call.comparison.difference(call.seen_done))
      revocation.revoke(Cause::mismatch,
                        distx::detail::RevocationReason::of(MismatchError(*found, call.context)).published());
    any = any || call.comparison.is_open();
    if (!call.in_flight()) return;
    any = true;
    if (!call.deadline.expired()) return;
    // It is late only if the GPU was asked after the deadline; and if CUDA does not answer, after another second.
    const std::uint64_t looks = looks_.load();
    if (call.expired_at_look == 0) call.expired_at_look = looks + 2;
    const bool asked = looks >= call.expired_at_look;
    late = late || asked || Deadline::clock::now() >= call.deadline.end() + std::chrono::seconds(1);
  });
  if (late) revocation.revoke(Cause::timeout, timed_out_after(options.deadline) + " in an asynchronous call");
  if (any) {
    revocation.poll();
    if (const auto lock = comms.try_locked()) comms.find_failures();
  }
  if (revocation.revoked()) return abort_in_background(), false;
  return any;
}

inline bool NcclBackend::observe() noexcept {
  bool any = false;
  for (std::size_t i = 0; StreamCall* const call = calls_.at(i); ++i) {
    if (!call->in_flight()) continue;
    if (!any && cudaSetDevice(device) != cudaSuccess) return false;
    any = true;
    const cuda::detail::RelaxedCapture relaxed;  // so that asking here ends no capture of another thread
    const std::uint64_t use = calls_.use_of(*call);
    try {
      if (call->stage == StreamCall::CallStage::issued)
        if (const auto lock = comms.try_locked()) static_cast<void>(call->comm->enqueued());
    } catch (const std::exception& error) {
      revocation.revoke(Cause::error, error.what());
    }
    if (call->stage != StreamCall::CallStage::enqueued) continue;
    if (const cudaError_t asked = cudaEventQuery(call->event.native_handle()); asked != cudaErrorNotReady)
      calls_.see_done(*call, use, asked != cudaSuccess);
  }
  ++looks_;
  return any;
}

inline void NcclBackend::leave_group(std::unique_lock<std::mutex> lock, ncclResult_t code, bool unwinding) noexcept {
  if (unwinding) revocation.revoke(Cause::revoked, "an NcclGroup was left by an exception");
  const ErrorContext context{
      .operation = "NcclGroup", .backend = self_.backend, .rank = self_.rank, .size = self_.size};
  try {
    const cuda::DeviceGuard guard(device);
    for (CommStream* const comm : {&comms.started, &comms.messages})
      if (comm->comm() != nullptr && !revocation.revoked()) comm->complete(code, "ncclGroupEnd", context);
    if (!revocation.revoked())
      for (StreamCall* const call : grouped_)
        if (!posted_.has(call)) call->comm->issued(*call);
  } catch (const std::exception& error) {
    revocation.revoke(Cause::error, error.what(), static_cast<int>(code));
  }
  grouped_.clear();
  lock.unlock();
  if (revocation.revoked()) abort();
}

}  // namespace distx::inline DISTX_ABI::nccl::detail
