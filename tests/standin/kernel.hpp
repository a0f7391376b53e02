// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cuda_runtime_api.h>
#include <vector_types.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

// The device functions and variables of a kernel.

// Of the thread of a kernel that runs now on this thread of the host.
extern thread_local constinit uint3 threadIdx;
extern thread_local constinit uint3 blockIdx;
extern thread_local constinit uint3 blockDim;
extern thread_local constinit uint3 gridDim;
inline constexpr int warpSize = 32;

namespace standin {

/// The order in which the blocks of a launch run, and the threads of a block between two barriers. If nothing is said,
/// launches take turns.
enum class Order { forward, reverse, random };
void thread_order(std::optional<Order> order);

/// Ends the failure that every function of the CUDA runtime returns after a kernel's misaligned access, and returns it.
cudaError_t end_gpu_failure() noexcept;

/// Enqueues a kernel; `thread` is what each of its threads runs.
cudaError_t launch(const cudaLaunchConfig_t* config, std::function<void()> thread);

/// Waits for all threads of the block.
void wait_for_block();

/// The value that a lane gives to its warp, and the value that it gets.
struct Exchange {
  std::array<unsigned char, 16> value{};
  unsigned source = 0;  ///< the lane whose value it gets
  unsigned lanes = 0;   ///< those that brought a value other than zero
};
/// Waits for the lanes of the mask.
void exchange(unsigned mask, Exchange& mine);
/// This thread's lane.
[[nodiscard]] unsigned lane();

template <class T>
T shuffled(unsigned mask, T value, unsigned source) {
  static_assert(sizeof(T) <= 16 && std::is_trivially_copyable_v<T>);
  Exchange mine;
  std::memcpy(mine.value.data(), &value, sizeof value);
  mine.source = source;
  exchange(mask, mine);
  std::memcpy(&value, mine.value.data(), sizeof value);
  return value;
}

/// The lane from which a shuffle within parts of a warp takes its value: its own where the other is in another part.
inline unsigned within(unsigned source, int width) {
  const unsigned own = lane();
  const auto size = static_cast<unsigned>(width);
  return source / size == own / size ? source : own;
}

inline unsigned lanes_with(unsigned mask, bool predicate) {
  Exchange mine;
  mine.value[0] = predicate ? 1 : 0;
  mine.source = lane();
  exchange(mask, mine);
  return mine.lanes;
}

/// Replaces a value that others may replace at the same time; gives what was there.
template <class T, class F>
T replace(T* where, F&& next) {
  std::atomic_ref<T> atomic(*where);
  T old = atomic.load(std::memory_order_relaxed);
  while (!atomic.compare_exchange_weak(old, next(old), std::memory_order_relaxed)) {
  }
  return old;
}

}  // namespace standin

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  return standin::launch(config, [kernel, values = std::tuple<std::decay_t<Parameters>...>(
                                              std::forward<Arguments>(arguments)...)] { std::apply(kernel, values); });
}

// The threads of a block are run by one thread of the host, and its blocks one after the other. The section has what is
// poisoned before each block; g++ leaves what belongs to templates and inline functions out of it.
#undef __shared__
#define __shared__ static thread_local __attribute__((section("standin_shared")))
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__

inline void __syncthreads() { standin::wait_for_block(); }
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const unsigned part = standin::lane() / static_cast<unsigned>(width) * static_cast<unsigned>(width);
  return standin::shuffled(mask, value, part + static_cast<unsigned>(source) % static_cast<unsigned>(width));
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return standin::shuffled(mask, value, standin::within(standin::lane() + delta, width));
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const unsigned own = standin::lane();
  return standin::shuffled(mask, value, delta > own ? own : standin::within(own - delta, width));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  return standin::shuffled(mask, value, standin::within(standin::lane() ^ static_cast<unsigned>(lanes), width));
}
inline unsigned __ballot_sync(unsigned mask, int predicate) { return standin::lanes_with(mask, predicate != 0); }
inline int __ffs(int value) { return value == 0 ? 0 : std::countr_zero(static_cast<unsigned>(value)) + 1; }
inline int __popc(unsigned value) { return std::popcount(value); }
inline int __any_sync(unsigned mask, int predicate) { return standin::lanes_with(mask, predicate != 0) != 0 ? 1 : 0; }
inline int __all_sync(unsigned mask, int predicate) { return standin::lanes_with(mask, predicate == 0) == 0 ? 1 : 0; }

template <class T>
T atomicAdd(T* where, std::type_identity_t<T> value) {
  return standin::replace(where, [=](T old) { return static_cast<T>(old + value); });
}
template <class T>
T atomicMax(T* where, std::type_identity_t<T> value) {
  return standin::replace(where, [=](T old) { return old < value ? value : old; });
}

template <class T>
T __ldg(const T* where) {
  return *where;
}
template <class T>
void __stwb(T* where, std::type_identity_t<T> value) {
  *where = value;
}

inline long long __double_as_longlong(double value) { return std::bit_cast<long long>(value); }

inline float __fadd_rn(float left, float right) { return left + right; }
inline float __fmul_rn(float left, float right) { return left * right; }
inline float __fdiv_rn(float left, float right) { return left / right; }
inline float __fsqrt_rn(float value) { return std::sqrt(value); }
inline double __dadd_rn(double left, double right) { return left + right; }
inline double __dmul_rn(double left, double right) { return left * right; }
inline double __ddiv_rn(double left, double right) { return left / right; }
inline double __dsqrt_rn(double value) { return std::sqrt(value); }
