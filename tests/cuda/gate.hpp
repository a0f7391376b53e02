// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <distx/cuda/stream.hpp>

#include <atomic>

namespace test {

/// Holds a stream up until it is opened.
class Gate {
 public:
  explicit Gate(distx::CudaStreamRef stream) : stream_(stream) {
    const auto wait = [](void* open) { static_cast<std::atomic<bool>*>(open)->wait(false); };
    distx::cuda::detail::check(cudaLaunchHostFunc(stream.native_handle(), wait, &open_), "cudaLaunchHostFunc");
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate() {
    open();
    static_cast<void>(cudaStreamSynchronize(stream_.native_handle()));  // it is looked at until then
  }
  void open() {
    open_ = true;
    open_.notify_all();
  }

 private:
  distx::CudaStreamRef stream_;
  std::atomic<bool> open_{false};
};

}  // namespace test
