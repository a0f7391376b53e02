// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/cuda/stream.hpp"

namespace distx {

/// An event of CUDA that is somebody else's. It must not outlive the event.
class CudaEventRef {
 public:
  constexpr CudaEventRef(cudaEvent_t event) noexcept : event_(event) {}  // NOLINT

  [[nodiscard]] static constexpr CudaEventRef from_native_handle(cudaEvent_t event) noexcept { return event; }
  [[nodiscard]] constexpr cudaEvent_t native_handle() const noexcept { return event_; }

  /// It has happened once all that is enqueued on the stream now is done.
  void record(CudaStreamRef stream) const {
    cuda::detail::check(cudaEventRecord(event_, stream.native_handle()), "cudaEventRecord");
  }
  /// Blocks the host until it has happened.
  void synchronize() const { cuda::detail::check(cudaEventSynchronize(event_), "cudaEventSynchronize"); }
  /// Whether it has happened; so has one that was never recorded.
  [[nodiscard]] bool done() const {
    const cudaError_t code = cudaEventQuery(event_);
    if (code == cudaErrorNotReady) {
      // Where CUDA keeps it as if it were an error; what else is kept is somebody else's.
      if (cudaPeekAtLastError() == cudaErrorNotReady) static_cast<void>(cudaGetLastError());
      return false;
    }
    cuda::detail::check(code, "cudaEventQuery");
    return true;
  }

 private:
  cudaEvent_t event_;
};

/// Owns an event of the GPU that was current when it was made; it orders work and keeps no time.
class CudaEvent {
 public:
  CudaEvent() {
    cudaEvent_t event = nullptr;
    cuda::detail::check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    handle_ = cuda::detail::unique_event::from_native_handle(event);
  }

  /// Takes over an event that the caller owned.
  [[nodiscard]] static CudaEvent from_native_handle(cudaEvent_t event) noexcept { return CudaEvent(event); }
  [[nodiscard]] cudaEvent_t native_handle() const noexcept { return handle_.native_handle(); }
  /// Gives the event to the caller, who must destroy it.
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

}  // namespace distx
