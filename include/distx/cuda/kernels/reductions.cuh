// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <bit>
#include <cmath>
#include <limits>

#include "distx/cuda/kernels/convert.cuh"
#include "distx/cuda/kernels/elementwise.cuh"
#include "distx/cuda/kernels/rounded.cuh"
#include "distx/cuda/kernels/typed.cuh"

// Reductions: within a warp by shuffles, within a block by shared memory, then among blocks by atomics on integers,
// whose order does not matter, or in a fixed order.
namespace distx::inline DISTX_ABI::cuda::detail {

using Bits = unsigned long long;  // the type that 64-bit atomics take

/// Calls f with each of this thread's values: vectors of 16 bytes from element `first` on, `stride` elements apart.
/// Several are loaded before the first is used; which thread has which value, and in which order, does not depend on
/// where the array begins.
template <class Index, class T, class F>
__device__ void for_each_value(const T* values, Index count, Index first, Index stride, F&& f) {
  constexpr Index width = 16 / sizeof(T);
  constexpr int depth = 2;
  const bool aligned = reinterpret_cast<std::uintptr_t>(values) % 16 == 0;
  Index i = first;
  for (; i + (depth - 1) * stride + width <= count; i += depth * stride) {
    Vector<T, width> own[depth];
    if (aligned)
      unrolled<depth>([&](int d) {
        own[d] = *reinterpret_cast<const Vector<T, width>*>(values + i + static_cast<Index>(d) * stride);
      });
    else
      unrolled<depth * width>([&](int e) {
        const auto vector = static_cast<Index>(e) / width, lane = static_cast<Index>(e) % width;
        own[vector].values[lane] = values[i + vector * stride + lane];
      });
    unrolled<depth * width>(
        [&](int e) { f(own[static_cast<Index>(e) / width].values[static_cast<Index>(e) % width]); });
  }
  for (; i < count; i += stride)
    unrolled<width>([&](int e) {
      const Index at = i + static_cast<Index>(e);
      if (at < count) f(values[at]);
    });
}

/// The arrays that one launch reduces.
struct ReducedTable {
  struct ReducedArray {
    const void* values;
    std::size_t count;
    Bits* result;
  };
  /// CUDA takes 4 KiB of parameters before 12.1.
  static constexpr std::size_t bytes = CUDART_VERSION >= 12010 ? 16000 : 4000;
  static constexpr unsigned capacity = (bytes - 16) / (sizeof(ReducedArray) + sizeof(unsigned));

  ReducedArray arrays[capacity];
  unsigned first_chunk[capacity + 1];
  unsigned count = 0;
};

/// Elements that a block reduces at a time.
template <class T>
inline constexpr unsigned chunk_elements = block_threads * static_cast<unsigned>(16 / sizeof(T)) * 4;

/// Calls f with each of this thread's values of all arrays, in any order, and `start(array)` and `flush(array)` in all
/// threads of the block before and after its values of an array. The values before the first boundary of vectors are
/// handled one by one, so that the others are loaded by vectors wherever the array begins.
template <class T, class Start, class F, class Flush>
__device__ void for_each_value_of(const ReducedTable& table, Start&& start, F&& f, Flush&& flush) {
  constexpr unsigned width = 16 / sizeof(T);
  const std::size_t chunks = table.first_chunk[table.count];
  auto chunk = static_cast<unsigned>(chunks * blockIdx.x / gridDim.x);
  const auto end = static_cast<unsigned>(chunks * (blockIdx.x + 1) / gridDim.x);
  for (unsigned array = 0; chunk < end; ++array) {
    const unsigned last = std::min(end, table.first_chunk[array + 1]);
    if (chunk >= last) continue;
    start(array);
    const std::size_t begin = (chunk - table.first_chunk[array]) * std::size_t{chunk_elements<T>};
    const T* const values = static_cast<const T*>(table.arrays[array].values) + begin;
    const auto count = static_cast<unsigned>(
        std::min<std::size_t>((last - chunk) * std::size_t{chunk_elements<T>}, table.arrays[array].count - begin));
    const auto shift = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(values) / sizeof(T) % width);
    const unsigned before = std::min(count, (width - shift) % width);
    if (threadIdx.x < before) f(values[threadIdx.x]);
    for_each_value<unsigned>(values + before, count - before, threadIdx.x * width, blockDim.x * width, f);
    flush(array);
    chunk = last;
  }
}

/// Returns the combination of the values of a warp, or of each `Lanes` lanes of it, to each of these lanes, in the same
/// order whichever lane.
template <int Lanes = 32, class T, class Combine>
__device__ T over_warp(T value, Combine&& combine) {
  for (int distance = Lanes / 2; distance > 0; distance /= 2)
    value = combine(value, __shfl_xor_sync(0xffffffffU, value, distance));
  return value;
}
__device__ inline bool leads_warp() { return threadIdx.x % 32 == 0; }

/// Returns the combination of all values of a block to its first warp.
template <class Combine>
__device__ Bits over_block(Bits value, Combine&& combine) {
  constexpr unsigned warps = block_threads / 32;
  auto* const of_warp = static_cast<Bits*>(block_memory());
  value = over_warp(value, combine);
  __syncthreads();
  if (leads_warp()) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x >= 32) return value;
  return over_warp(threadIdx.x < warps ? of_warp[threadIdx.x] : Bits{0}, combine);
}

/// Blocks of the reductions of tables that a multiprocessor holds at once; more would have too few registers.
inline constexpr unsigned reducing_blocks = 2048 / block_threads;
inline constexpr unsigned table_blocks = 6;

template <class T>
__global__ void __launch_bounds__(block_threads, table_blocks)
    largest_kernel(const __grid_constant__ ReducedTable table) {
  using Word = std::conditional_t<sizeof(T) == 8, Bits, std::conditional_t<sizeof(T) == 4, unsigned, unsigned short>>;
  using Held = std::conditional_t<sizeof(T) == 2, unsigned, Word>;
  constexpr auto magnitude = static_cast<Held>(std::numeric_limits<Word>::max() >> 1);
  // Magnitudes are ordered as their bits are: numbers, infinity, then NaNs.
  Held most = 0;
  for_each_value_of<T>(
      table, [](unsigned) {},
      [&](T value) {
        const Held own = std::bit_cast<Word>(value) & magnitude;
        most = most < own ? own : most;
      },
      [&](unsigned array) {
        double number = static_cast<double>(wide(std::bit_cast<T>(static_cast<Word>(most))));
        if (!(number < std::numeric_limits<double>::infinity())) number = std::numeric_limits<double>::infinity();
        const Bits bits = over_block(std::bit_cast<Bits>(number), [](Bits a, Bits b) { return a < b ? b : a; });
        if (threadIdx.x == 0 && bits != 0) atomicMax(table.arrays[array].result, bits);
        most = 0;
      });
}

/// The exponent of `FixedPointSum::exponent_for`.
__device__ inline int fixed_point_exponent(double largest) {
  int exponent = 0;
  static_cast<void>(std::frexp(largest, &exponent));
  return exponent < -900 ? -900 : exponent;
}

/// A thread's part of a FixedPointSum.
struct FixedPointPart {
  double scale = 0;
  Bits high = 0, low = 0;

  /// @pre the magnitude is finite
  __device__ void begin(double largest) { scale = std::ldexp(1.0, -fixed_point_exponent(largest)); }
  __device__ void add(double value) {
    const double scaled = value * scale;
    const auto units = static_cast<Bits>(static_cast<long long>(scaled * scaled * 0x1p62));
    high += units >> 32;
    low += units & 0xffffffffU;
  }
  /// Adds the parts of a block's threads to a sum, and begins again.
  __device__ void flush(Bits* total) {
    high += low >> 32;
    low &= 0xffffffffU;
    const auto plus = [](Bits a, Bits b) { return a + b; };
    high = over_block(high, plus);
    low = over_block(low, plus);
    if (threadIdx.x == 0 && (high | low) != 0) {
      atomicAdd(&total[0], high + (low >> 32));
      atomicAdd(&total[1], low & 0xffffffffU);
    }
    high = low = 0;
  }
};

template <class T>
__global__ void __launch_bounds__(block_threads, table_blocks - 1)
    squares_kernel(const __grid_constant__ ReducedTable table, const double* largest, Bits* total) {
  const double most = *largest;
  if (!(most < std::numeric_limits<double>::infinity())) return;
  FixedPointPart part;
  part.begin(most);
  for_each_value_of<T>(
      table, [](unsigned) {}, [&](T value) { part.add(static_cast<double>(wide(value))); }, [](unsigned) {});
  part.flush(total);
}

/// Adds up the squares of each array by itself. The arrays' results are their largest magnitudes, among `largest`.
template <class T>
__global__ void __launch_bounds__(block_threads, table_blocks - 1)
    squares_of_each_kernel(const __grid_constant__ ReducedTable table, const double* largest, Bits* totals) {
  const auto magnitude = [&](unsigned array) { return reinterpret_cast<const double*>(table.arrays[array].result); };
  FixedPointPart part;
  for_each_value_of<T>(
      table, [&](unsigned array) { part.begin(*magnitude(array)); },
      [&](T value) { part.add(static_cast<double>(wide(value))); },
      [&](unsigned array) { part.flush(totals + 2 * (magnitude(array) - largest)); });
}

/// Computes the norm of a FixedPointSum, and the factor that clips it, with the host's bits.
static __global__ void __launch_bounds__(32)
    clip_factor_kernel(const double* largest, const Bits* parts, double clip_norm, double unscale, ClipFactor* result) {
  if (threadIdx.x != 0) return;
  using Number = Rounded<double>;
  const double most = *largest;
  Number norm = most, factor = unscale;
  if (!(most < std::numeric_limits<double>::infinity())) {
    factor = std::numeric_limits<double>::quiet_NaN();
  } else {
    const Number high = std::ldexp(static_cast<double>(parts[0] + (parts[1] >> 32)), 32);
    const Number all = high + Number(static_cast<double>(parts[1] & 0xffffffffU));
    const Number root = sqrt(Number(std::ldexp(all.number(), -62)));
    norm = most > 0 ? Number(std::ldexp(root.number(), fixed_point_exponent(most))) * unscale : Number(0);
    if (norm > clip_norm) factor *= Number(clip_norm) / norm;
  }
  *result = {norm.number(), factor.number()};
}

template <class T>
__global__ void __launch_bounds__(block_threads, reducing_blocks)
    partial_squares_kernel(const T* values, std::size_t count, double* partial) {
  double total = 0;
  constexpr std::size_t width = 16 / sizeof(T);
  const std::size_t thread = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::size_t threads = std::size_t{gridDim.x} * blockDim.x;
  for_each_value(values, count, thread * width, threads * width, [&](T value) {
    const auto number = static_cast<double>(wide(value));
    total += number * number;
  });
  total = over_warp(total, [](double a, double b) { return a + b; });
  if (leads_warp()) partial[(blockIdx.x * blockDim.x + threadIdx.x) / 32] = total;
}

/// Adds up the partial sums, by one warp: each lane adds every 32nd in their order. Many are loaded before the first is
/// added, since the warp has nothing else to do while it waits for memory.
static __global__ void __launch_bounds__(32) add_up_kernel(const double* partial, unsigned count, double* total) {
  constexpr int depth = 32;
  double own = 0;
  for (unsigned first = threadIdx.x; first < count; first += depth * 32) {
    double part[depth];
    unrolled<depth>([&](int i) {
      const unsigned at = first + static_cast<unsigned>(i) * 32;
      part[i] = at < count ? partial[at] : 0;  // adding 0 changes no sum of squares
    });
    unrolled<depth>([&](int i) { own += part[i]; });
  }
  own = over_warp(own, [](double a, double b) { return a + b; });
  if (leads_warp()) *total = own;
}

/// Calls f(std::type_identity<T>(), table, blocks) for tables of all arrays of each type.
template <class F>
void for_each_table(std::span<const ReducedSpan> all, F&& f) {
  const auto of_type = [&]<class T>(std::type_identity<T> type) {
    ReducedTable table;
    table.first_chunk[0] = 0;
    const auto flush = [&] {
      if (table.count > 0) f(type, table, blocks_for(table.first_chunk[table.count], table_blocks));
      table.count = 0;
    };
    for (const auto& each : all) {
      if (each.values.type() != element_type<T>) continue;
      const std::size_t chunks = (each.values.size() + chunk_elements<T> - 1) / chunk_elements<T>;
      table.arrays[table.count] = {each.values.data(), each.values.size(), reinterpret_cast<Bits*>(each.result)};
      table.first_chunk[table.count + 1] = table.first_chunk[table.count] + static_cast<unsigned>(chunks);
      if (++table.count == table.capacity) flush();
    }
    flush();
  };
  of_type(std::type_identity<float>{});
  of_type(std::type_identity<double>{});
  of_type(std::type_identity<bfloat16>{});
  of_type(std::type_identity<float16>{});
}

inline void enqueue_largest_magnitude(CudaStreamRef stream, std::span<const ReducedSpan> all) {
  for_each_table(all, [&]<class T>(std::type_identity<T>, const ReducedTable& table, unsigned blocks) {
    enqueue<&largest_kernel<T>>(stream, blocks, block_threads, table);
  });
}

inline void enqueue_fixed_point_squares(CudaStreamRef stream, std::span<const ReducedSpan> all, const double* largest,
                                        std::uint64_t* total) {
  static_assert(sizeof(Bits) == sizeof(std::uint64_t));
  for_each_table(all, [&]<class T>(std::type_identity<T>, const ReducedTable& table, unsigned blocks) {
    enqueue<&squares_kernel<T>>(stream, blocks, block_threads, table, largest, reinterpret_cast<Bits*>(total));
  });
}

inline void enqueue_squares_of_each(CudaStreamRef stream, std::span<const ReducedSpan> all, const double* largest,
                                    std::uint64_t* totals) {
  for_each_table(all, [&]<class T>(std::type_identity<T>, const ReducedTable& table, unsigned blocks) {
    enqueue<&squares_of_each_kernel<T>>(stream, blocks, block_threads, table, largest, reinterpret_cast<Bits*>(totals));
  });
}

inline void enqueue_clip_factor(CudaStreamRef stream, const double* largest, const std::uint64_t* parts,
                                double clip_norm, double unscale, ClipFactor* result) {
  enqueue<&clip_factor_kernel>(stream, 1, 32, largest, reinterpret_cast<const Bits*>(parts), clip_norm, unscale,
                               result);
}

/// The number of blocks depends on the number of values alone.
inline void enqueue_sum_of_squares(CudaStreamRef stream, Kernels::In values, double* partial, double* total) {
  constexpr unsigned warps = block_threads / 32;
  const std::size_t wanted = (values.size() + block_threads - 1) / block_threads;
  const auto blocks = static_cast<unsigned>(std::min<std::size_t>(wanted, Kernels::partial_sums / warps));
  with_floating(values, [&]<class T>(const T* all) {
    enqueue<&partial_squares_kernel<T>>(stream, blocks, block_threads, all, values.size(), partial);
  });
  enqueue<&add_up_kernel>(stream, 1, 32, partial, blocks * warps, total);
}

}  // namespace distx::inline DISTX_ABI::cuda::detail
