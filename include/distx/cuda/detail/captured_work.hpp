// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <utility>

#include "distx/cuda/detail/handles.hpp"
#include "distx/cuda/space.hpp"
#include "distx/memory/detail/captured_work.hpp"

namespace distx::inline DISTX_ABI {

namespace cuda::detail {

struct graph_traits {
  using handle_type = cudaGraph_t;
  static handle_type null() noexcept { return nullptr; }
  static void close(handle_type graph) noexcept { static_cast<void>(cudaGraphDestroy(graph)); }
};
struct graph_instance_traits {
  using handle_type = cudaGraphExec_t;
  static handle_type null() noexcept { return nullptr; }
  static void close(handle_type instance) noexcept { static_cast<void>(cudaGraphExecDestroy(instance)); }
};
using unique_graph = unique_handle<graph_traits>;
using unique_graph_instance = unique_handle<graph_instance_traits>;

/// Whether the stream is being captured into a CUDA graph, or is the legacy default stream while another one is, which
/// CUDA forbids to use. False on a GPU that has failed: the next call reports that.
[[nodiscard]] inline bool capturing(CudaStreamRef stream) noexcept {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t code = cudaStreamIsCapturing(stream.native_handle(), &status);
  if (code == cudaSuccess) [[likely]]
    return status != cudaStreamCaptureStatusNone;
  static_cast<void>(cudaGetLastError());
  return code == cudaErrorStreamCaptureImplicit;
}

}  // namespace cuda::detail

namespace detail {

/// An instance of a CUDA graph.
///
/// NCCL's communicators that have calls in it are not destroyed, and not even aborted, before it is.
template <>
class CapturedWork<Cuda> {
 public:
  static constexpr bool available = true;
  [[nodiscard]] static bool capturing(CudaStreamRef stream) noexcept { return cuda::detail::capturing(stream); }

  /// Records what `f` enqueues on the stream, and on streams that it orders after that one and joins to it again.
  ///
  /// The capture mode is relaxed: NCCL and the communicators ask for events of other streams meanwhile.
  /// @throws BackendError if CUDA cannot capture something of it
  template <class F>
  CapturedWork(CudaStreamRef stream, F&& f) {
    using cuda::detail::check;
    check(cudaStreamBeginCapture(stream.native_handle(), cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
    try {
      std::forward<F>(f)();
    } catch (...) {
      static_cast<void>(end(stream));
      static_cast<void>(cudaGetLastError());
      throw;
    }
    check(end(stream), "cudaStreamEndCapture");
    cudaGraphExec_t made = nullptr;
    check(cudaGraphInstantiate(&made, graph_.native_handle(), 0), "cudaGraphInstantiate");
    instance_ = cuda::detail::unique_graph_instance::from_native_handle(made);
    graph_ = {};  // the instance has copies of its nodes
  }

  /// Enqueues the work. Launches of one graph run one after the other.
  void launch(CudaStreamRef stream) const {
    cuda::detail::check(cudaGraphLaunch(instance_.native_handle(), stream.native_handle()), "cudaGraphLaunch");
  }

 private:
  [[nodiscard]] cudaError_t end(CudaStreamRef stream) noexcept {
    cudaGraph_t made = nullptr;
    const cudaError_t code = cudaStreamEndCapture(stream.native_handle(), &made);
    graph_ = cuda::detail::unique_graph::from_native_handle(made);
    return code;
  }

  cuda::detail::unique_graph graph_;
  cuda::detail::unique_graph_instance instance_;
};

}  // namespace detail

}  // namespace distx::inline DISTX_ABI
