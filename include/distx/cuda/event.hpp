// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/cuda/stream.hpp"

namespace distx::inline DISTX_ABI {

/// A non-owning reference to a CUDA event, which it must not outlive.
class CudaEventRef {
 public:
  constexpr CudaEventRef(cudaEvent_t event) noexcept : event_(event) {}  // NOLINT

  /// Refers to an event that the caller owns.
  [[nodiscard]] static constexpr CudaEventRef from_native_handle(cudaEvent_t event) noexcept { return event; }
  [[nodiscard]] constexpr cudaEvent_t native_handle() const noexcept { return event_; }

  /// Records the event: it completes when all work that is now enqueued on the stream is complete.
  void record(CudaStreamRef stream) const {
    cuda::detail::check(cudaEventRecord(event_, stream.native_handle()), "cudaEventRecord");
  }
  /// Blocks the host until the event is complete.
  /// @throws BackendError with the error of the enqueued work
  void synchronize() const { cuda::detail::check(cudaEventSynchronize(event_), "cudaEventSynchronize"); }
  /// Returns whether the event is complete, as one is that was never recorded.
  [[nodiscard]] bool done() const {
    const cuda::detail::RelaxedCapture relaxed;
    const cudaError_t code = cudaEventQuery(event_);
    if (code == cudaErrorNotReady) {
      // CUDA may keep this code as if it were an error; another error that it keeps belongs to other code.
      if (cudaPeekAtLastError() == cudaErrorNotReady) static_cast<void>(cudaGetLastError());
      return false;
    }
    cuda::detail::check(code, "cudaEventQuery");
    return true;
  }

 private:
  cudaEvent_t event_;
};

/// Owns a CUDA event, without timing, of the GPU that is current when it is constructed.
class CudaEvent {
 public:
  CudaEvent() {
    cudaEvent_t event = nullptr;
    cuda::detail::check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    handle_ = cuda::detail::unique_event::from_native_handle(event);
  }

  /// Takes ownership of an event.
  [[nodiscard]] static CudaEvent from_native_handle(cudaEvent_t event) noexcept { return CudaEvent(event); }
  [[nodiscard]] cudaEvent_t native_handle() const noexcept { return handle_.native_handle(); }
  /// Releases ownership to the caller, which must destroy the event.
  [[nodiscard]] cudaEvent_t release() noexcept { return handle_.release(); }

  [[nodiscard]] CudaEventRef ref() const noexcept { return native_handle(); }
  operator CudaEventRef() const noexcept { return ref(); }  // NOLINT
  void record(CudaStreamRef stream) const { ref().record(stream); }
  void synchronize() const { ref().synchronize(); }
  [[nodiscard]] bool done() const { return ref().done(); }

 private:
  explicit CudaEvent(cudaEvent_t event) noexcept : handle_(cuda::detail::unique_event::from_native_handle(event)) {}

  cuda::detail::unique_event handle_;
};

inline void CudaStreamRef::wait(CudaEventRef event) const {
  cuda::detail::check(cudaStreamWaitEvent(stream_, event.native_handle(), 0), "cudaStreamWaitEvent");
}
inline void CudaStream::wait(CudaEventRef event) const { ref().wait(event); }

}  // namespace distx::inline DISTX_ABI
