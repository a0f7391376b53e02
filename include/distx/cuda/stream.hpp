// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/cuda/detail/check.hpp"
#include "distx/cuda/detail/handles.hpp"

namespace distx {

class CudaEventRef;

namespace cuda::detail {

/// Whether the default stream is each thread's own: CUDA's header then declares its functions by names of that mode.
template <class Stream>
concept DefaultIsPerThread = requires(Stream stream) { cudaStreamQuery_ptsz(stream); };
static_assert(!DefaultIsPerThread<cudaStream_t>,
              "distx: stream 0 is the one default stream that NCCL and cuBLAS know: compile without per-thread default "
              "streams, and give the calls of a thread a stream of its own");

}  // namespace cuda::detail

/// A stream of CUDA that is somebody else's: CUDA's legacy default stream, a user's own, or a CudaStream's.
///
/// A value as small as the handle. It must not outlive the stream.
class CudaStreamRef {
 public:
  /// CUDA's legacy default stream.
  constexpr CudaStreamRef() noexcept = default;
  constexpr CudaStreamRef(cudaStream_t stream) noexcept : stream_(stream) {}  // NOLINT

  [[nodiscard]] static constexpr CudaStreamRef from_native_handle(cudaStream_t stream) noexcept { return stream; }
  [[nodiscard]] constexpr cudaStream_t native_handle() const noexcept { return stream_; }

  /// What is enqueued here from now on waits for the event.
  inline void wait(CudaEventRef event) const;
  /// Blocks the host until all that was enqueued is done.
  /// @throws Error that the enqueued work ended in
  void synchronize() const { cuda::detail::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }
  /// Blocks the host until all that was enqueued on any stream of the current GPU is done.
  static void synchronize_all() { cuda::detail::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }
  /// Whether all that was enqueued is done.
  [[nodiscard]] bool done() const {
    const cudaError_t code = cudaStreamQuery(stream_);
    if (code == cudaErrorNotReady) {
      // Where CUDA keeps it as if it were an error; what else is kept is somebody else's.
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

/// Owns a stream of the GPU that was current when it was made; the legacy default stream and it do not wait for one
/// another. Letting it go lets what is enqueued run to its end.
class CudaStream {
 public:
  /// @param priority as CUDA counts it: lower numbers go first, 0 is the lowest
  explicit CudaStream(int priority = 0) {
    cudaStream_t stream = nullptr;
    cuda::detail::check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority),
                        "cudaStreamCreateWithPriority");
    handle_ = cuda::detail::unique_stream::from_native_handle(stream);
  }

  /// Takes over a stream that the caller owned.
  [[nodiscard]] static CudaStream from_native_handle(cudaStream_t stream) noexcept { return CudaStream(stream); }
  [[nodiscard]] cudaStream_t native_handle() const noexcept { return handle_.native_handle(); }
  /// Gives the stream to the caller, who must destroy it.
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

}  // namespace distx
