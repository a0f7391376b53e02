// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <bit>
#include <cmath>
#include <limits>

#include "distx/cuda/kernels/launch.cuh"
#include "distx/cuda/kernels/typed.cuh"

// From many values one: within a warp by shuffles, then by atomics on integers, whose order does not matter, or in a
// fixed order.
namespace distx::cuda::detail {

using Bits = unsigned long long;  // what atomics take

/// f of each of this thread's values, several of which are loaded before the first is waited for.
template <class T, class F>
__device__ void for_each_value(const T* values, std::size_t count, F&& f) {
  constexpr int depth = 8;
  const std::size_t threads = std::size_t{gridDim.x} * blockDim.x;
  const std::size_t thread = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  std::size_t i = thread;
  for (; i + (depth - 1) * threads < count; i += depth * threads) {
    T own[depth];
    for (int d = 0; d < depth; ++d) own[d] = values[i + static_cast<std::size_t>(d) * threads];
    for (int d = 0; d < depth; ++d) f(static_cast<accumulator_t<T>>(own[d]));
  }
  for (; i < count; i += threads) f(static_cast<accumulator_t<T>>(values[i]));
}

/// Every lane gets all lanes' values, combined; in the same order whichever lane.
template <class T, class Combine>
__device__ T over_warp(T value, Combine&& combine) {
  for (int distance = 16; distance > 0; distance /= 2)
    value = combine(value, __shfl_xor_sync(0xffffffffU, value, distance));
  return value;
}
__device__ inline bool leads_warp() { return threadIdx.x % 32 == 0; }

template <class T>
__global__ void __launch_bounds__(block_threads) largest_kernel(const T* values, std::size_t count, Bits* largest) {
  using A = accumulator_t<T>;
  constexpr A infinity = std::numeric_limits<A>::infinity();
  A most = 0;
  for_each_value(values, count, [&](A value) {
    const A magnitude = value < 0 ? -value : value;
    if (!(magnitude < infinity))
      most = infinity;  // what is not a number, too
    else if (most < magnitude)
      most = magnitude;
  });
  // Of numbers that are not negative the larger one has the larger bits.
  const Bits bits =
      over_warp(std::bit_cast<Bits>(static_cast<double>(most)), [](Bits a, Bits b) { return a < b ? b : a; });
  if (leads_warp() && bits != 0) atomicMax(largest, bits);
}

template <class T>
__global__ void __launch_bounds__(block_threads)
    squares_kernel(const T* values, std::size_t count, const double* largest, Bits* total) {
  const double most = *largest;
  if (!(most < std::numeric_limits<double>::infinity())) return;
  int exponent = 0;
  static_cast<void>(std::frexp(most, &exponent));
  const double scale = std::ldexp(1.0, -(exponent < -900 ? -900 : exponent));
  Bits high = 0, low = 0;
  for_each_value(values, count, [&](auto value) {
    const double scaled = static_cast<double>(value) * scale;
    const auto units = static_cast<Bits>(static_cast<long long>(scaled * scaled * 0x1p62));
    high += units >> 32;
    low += units & 0xffffffffU;
  });
  high += low >> 32;
  low &= 0xffffffffU;
  const auto plus = [](Bits a, Bits b) { return a + b; };
  high = over_warp(high, plus);
  low = over_warp(low, plus);
  if (leads_warp() && (high | low) != 0) {
    atomicAdd(&total[0], high + (low >> 32));
    atomicAdd(&total[1], low & 0xffffffffU);
  }
}

template <class T>
__global__ void __launch_bounds__(block_threads)
    partial_squares_kernel(const T* values, std::size_t count, double* partial) {
  double total = 0;
  for_each_value(values, count, [&](auto value) {
    const auto wide = static_cast<double>(value);
    total += wide * wide;
  });
  total = over_warp(total, [](double a, double b) { return a + b; });
  if (leads_warp()) partial[(blockIdx.x * blockDim.x + threadIdx.x) / 32] = total;
}

/// One warp adds up.
static __global__ void __launch_bounds__(32) add_up_kernel(const double* partial, unsigned count, double* total) {
  double own = 0;
  for (unsigned i = threadIdx.x; i < count; i += 32) own += partial[i];
  own = over_warp(own, [](double a, double b) { return a + b; });
  if (leads_warp()) *total = own;
}

/// Fewer blocks than there could be: each ends in an atomic on the same few bytes.
[[nodiscard]] inline unsigned blocks_that_reduce(std::size_t count) {
  return blocks_for((count + block_threads - 1) / block_threads, 4);
}

inline void enqueue_largest_magnitude(CudaStreamRef stream, Kernels::In values, double* largest) {
  with_floating(values, [&]<class T>(const T* all) {
    launch(stream, blocks_that_reduce(values.size()), block_threads, &largest_kernel<T>, all, values.size(),
           reinterpret_cast<Bits*>(largest));
  });
}

inline void enqueue_fixed_point_squares(CudaStreamRef stream, Kernels::In values, const double* largest,
                                        std::uint64_t* total) {
  static_assert(sizeof(Bits) == sizeof(std::uint64_t));
  with_floating(values, [&]<class T>(const T* all) {
    launch(stream, blocks_that_reduce(values.size()), block_threads, &squares_kernel<T>, all, values.size(), largest,
           reinterpret_cast<Bits*>(total));
  });
}

/// By a number of blocks that hangs on the number of values alone.
inline void enqueue_sum_of_squares(CudaStreamRef stream, Kernels::In values, double* partial, double* total) {
  constexpr unsigned warps = block_threads / 32;
  const std::size_t wanted = (values.size() + block_threads - 1) / block_threads;
  const auto blocks = static_cast<unsigned>(std::min<std::size_t>(wanted, Kernels::partial_sums / warps));
  with_floating(values, [&]<class T>(const T* all) {
    launch(stream, blocks, block_threads, &partial_squares_kernel<T>, all, values.size(), partial);
  });
  launch(stream, 1, 32, &add_up_kernel, partial, blocks * warps, total);
}

}  // namespace distx::cuda::detail
