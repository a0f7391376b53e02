// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <mutex>
#include <vector>

#include "distx/core/detail/wait.hpp"
#include "distx/cuda/device.hpp"

namespace distx::inline DISTX_ABI {

namespace cuda::detail {

/// The memory pools of stream-ordered buffers: one for each GPU, until the process exits.
///
/// They keep deallocated memory. CUDA's default pool returns unused memory to the system whenever the host
/// synchronizes, and allocating it again takes longer than most kernels.
class Pools {
 public:
  [[nodiscard]] static Pools& all() {
    static Pools pools;
    return pools;
  }

  [[nodiscard]] cudaMemPool_t of(int device) {
    const std::lock_guard lock(mutex_);
    return pool(device);
  }
  /// Lets the GPUs of this process's ranks access each other's pools: within a process NCCL reads and writes other
  /// ranks' buffers directly, which CUDA allows for memory of `cudaMalloc`, but for a pool only on request.
  void share(int device) {
    const std::lock_guard lock(mutex_);
    if (std::find(sharing_.begin(), sharing_.end(), device) != sharing_.end()) return;
    for (const int other : sharing_) {
      let_reach(other, device);
      let_reach(device, other);
    }
    sharing_.push_back(device);
  }
  /// Returns unused memory to the system.
  void trim(int device) {
    const std::lock_guard lock(mutex_);
    if (const auto index = static_cast<std::size_t>(device); index < pools_.size() && pools_[index] != nullptr)
      check(cudaMemPoolTrimTo(pools_[index], 0), "cudaMemPoolTrimTo");
  }

 private:
  Pools() = default;

  cudaMemPool_t pool(int device) {
    const auto index = static_cast<std::size_t>(device);
    if (pools_.size() <= index) pools_.resize(index + 1);
    if (pools_[index] == nullptr) {
      cudaMemPoolProps properties{};
      properties.allocType = cudaMemAllocationTypePinned;
      properties.location.type = cudaMemLocationTypeDevice;
      properties.location.id = device;
      cudaMemPool_t made = nullptr;
      check(cudaMemPoolCreate(&made, &properties), "cudaMemPoolCreate");
      std::uint64_t all = std::numeric_limits<std::uint64_t>::max();
      check(cudaMemPoolSetAttribute(made, cudaMemPoolAttrReleaseThreshold, &all), "cudaMemPoolSetAttribute");
      pools_[index] = made;
    }
    return pools_[index];
  }
  void let_reach(int owner, int reader) {
    int can = 0;
    check(cudaDeviceCanAccessPeer(&can, reader, owner), "cudaDeviceCanAccessPeer");
    if (can == 0) return;  // NCCL does not either
    cudaMemAccessDesc access{};
    access.location.type = cudaMemLocationTypeDevice;
    access.location.id = reader;
    access.flags = cudaMemAccessFlagsProtReadWrite;
    check(cudaMemPoolSetAccess(pool(owner), &access, 1), "cudaMemPoolSetAccess");
  }

  std::mutex mutex_;
  std::vector<cudaMemPool_t> pools_;
  std::vector<int> sharing_;
};

/// Returns unused memory to the system after all enqueued work, for an allocation that has failed. Waits at most ten
/// seconds, since enqueued work may wait for a rank that has failed.
inline void reclaim_memory() {
  static_cast<void>(cudaGetLastError());
  distx::detail::run_in_time(std::chrono::seconds(10), [device = current_device()] {
    if (cudaSetDevice(device) == cudaSuccess) static_cast<void>(cudaDeviceSynchronize());
  });
  Pools::all().trim(current_device());
}

}  // namespace cuda::detail

}  // namespace distx::inline DISTX_ABI
