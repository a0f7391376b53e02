// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/cuda/detail/check.hpp"
#include "distx/cuda/detail/handles.hpp"

namespace distx::inline DISTX_ABI {

class CudaEventRef;

namespace cuda::detail {

/// Whether each thread has its own default stream: CUDA's header then declares its functions by names of that mode.
template <class Stream>
concept DefaultIsPerThread = requires(Stream stream) { cudaStreamQuery_ptsz(stream); };
static_assert(
    !DefaultIsPerThread<cudaStream_t>,
    "distx: compile without per-thread default streams, since NCCL and cuBLAS take stream 0 for the legacy default "
    "stream; give each thread its own CudaStream");

/// Until the scope ends, this thread may make calls that CUDA forbids while another thread captures a graph in the
/// global mode, and which would end that capture: queries, which are never part of a graph.
class RelaxedCapture {
 public:
  RelaxedCapture() noexcept { exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;
  ~RelaxedCapture() { exchange(); }

 private:
  void exchange() noexcept { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }

  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace cuda::detail

/// A non-owning reference to a CUDA stream, which it must not outlive: the legacy default stream, a custom one, or a
/// CudaStream's. Objects that keep one say so: destroy the stream after them.
class CudaStreamRef {
 public:
  /// Refers to CUDA's legacy default stream.
  constexpr CudaStreamRef() noexcept = default;
  constexpr CudaStreamRef(cudaStream_t stream) noexcept : stream_(stream) {}  // NOLINT

  /// Refers to a stream that the caller owns.
  [[nodiscard]] static constexpr CudaStreamRef from_native_handle(cudaStream_t stream) noexcept { return stream; }
  [[nodiscard]] constexpr cudaStream_t native_handle() const noexcept { return stream_; }

  /// Makes work that is enqueued from now on wait for the event.
  inline void wait(CudaEventRef event) const;
  /// Blocks the host until all enqueued work is complete.
  /// @throws BackendError with the error of the enqueued work
  void synchronize() const { cuda::detail::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }
  /// Blocks the host until all work enqueued on any stream of the current GPU is complete.
  static void synchronize_all() { cuda::detail::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }
  /// Returns whether all enqueued work is complete.
  [[nodiscard]] bool done() const {
    const cuda::detail::RelaxedCapture relaxed;
    const cudaError_t code = cudaStreamQuery(stream_);
    if (code == cudaErrorNotReady) {
      // CUDA may keep this code as if it were an error; another error that it keeps belongs to other code.
      if (cudaPeekAtLastError() == cudaErrorNotReady) static_cast<void>(cudaGetLastError());
      return false;
    }
    cuda::detail::check(code, "cudaStreamQuery");
    return true;
  }
  friend constexpr bool operator==(CudaStreamRef, CudaStreamRef) noexcept = default;

 private:
  cudaStream_t stream_ = nullptr;
};

/// Owns a CUDA stream of the GPU that is current when it is constructed. It does not synchronize with the legacy
/// default stream. Work that is enqueued when it is destroyed still completes.
class CudaStream {
 public:
  /// @param priority  CUDA's: streams of lower numbers run first; 0 is the lowest priority
  explicit CudaStream(int priority = 0) {
    cudaStream_t stream = nullptr;
    cuda::detail::check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority),
                        "cudaStreamCreateWithPriority");
    handle_ = cuda::detail::unique_stream::from_native_handle(stream);
  }

  /// Takes ownership of a stream.
  [[nodiscard]] static CudaStream from_native_handle(cudaStream_t stream) noexcept { return CudaStream(stream); }
  [[nodiscard]] cudaStream_t native_handle() const noexcept { return handle_.native_handle(); }
  /// Releases ownership to the caller, which must destroy the stream.
  [[nodiscard]] cudaStream_t release() noexcept { return handle_.release(); }

  [[nodiscard]] CudaStreamRef ref() const noexcept { return native_handle(); }
  operator CudaStreamRef() const noexcept { return ref(); }  // NOLINT
  void wait(CudaEventRef event) const;
  void synchronize() const { ref().synchronize(); }
  [[nodiscard]] bool done() const { return ref().done(); }

 private:
  explicit CudaStream(cudaStream_t stream) noexcept
      : handle_(cuda::detail::unique_stream::from_native_handle(stream)) {}

  cuda::detail::unique_stream handle_;
};

}  // namespace distx::inline DISTX_ABI
