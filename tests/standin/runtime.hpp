// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cuda_runtime_api.h>

#include <memory>
#include <utility>
#include <vector>

#include "standin/calls.hpp"
#include "standin/stream.hpp"

// Shared by the parts of the CUDA runtime, and by NCCL and cuBLAS above it.
namespace standin {

inline constexpr int greatest_priority = -5;

/// This thread's last error, as cudaGetLastError returns it.
void note(cudaError_t code);

/// What ended the GPU's work, as every function returns it from then on; cudaSuccess if nothing did.
[[nodiscard]] cudaError_t gpu_failure() noexcept;
void fail_gpu(cudaError_t code) noexcept;

/// Takes note that a function makes a context on this thread's GPU, unless it is one of those that only ask.
void use_context(const char* function) noexcept;

/// A function of the CUDA runtime.
template <class F>
cudaError_t runtime_called(const char* function, F&& f) {
  const auto code = called<cudaError_t>(function, [&] {
    require(gpu_failure() == cudaSuccess, gpu_failure());
    f();
    use_context(function);
    require(gpu_failure() == cudaSuccess, gpu_failure());
  });
  note(code);
  return code;
}

/// The stream of a handle; a default stream's is the GPU's given here. Ends the call where there is none.
[[nodiscard]] std::shared_ptr<Stream> stream_of(cudaStream_t handle, int device);

/// Enqueues work in the order that CUDA promises: the legacy default stream and the streams that block wait for one
/// another. On a stream that is being captured it becomes a node of the graph.
Point enqueue(const std::shared_ptr<Stream>& stream, Work work, std::vector<Point> after = {});
/// Waits for all that is enqueued on a stream now, as cudaStreamSynchronize does.
void wait_for_stream(const std::shared_ptr<Stream>& stream);
[[nodiscard]] bool ready(const std::shared_ptr<Stream>& stream);
/// Waits for all that is enqueued on all streams of a GPU now.
void wait_for_device(int device);

[[nodiscard]] std::size_t live_streams();
[[nodiscard]] std::size_t live_events();
[[nodiscard]] std::size_t live_graphs();

/// Whether calls that wait are forbidden, since a stream of this GPU is being captured.
[[nodiscard]] bool capturing_on(int device);
/// Ends a call that is unsafe in a capture if a stream is being captured in the global mode, and this thread's mode is
/// not relaxed.
void forbid_while_capturing();

}  // namespace standin
