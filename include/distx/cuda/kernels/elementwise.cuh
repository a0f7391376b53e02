// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdint>
#include <utility>

#include "distx/cuda/kernels/launch.cuh"

// The one kernel for all that is done element by element on arrays of one length.
namespace distx::cuda::detail {

/// f(0), f(1)… f(Count - 1), without a loop: what arrays are indexed by then stays in registers.
template <int Count, class F>
__device__ void unrolled(F&& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) { (f(I), ...); }(std::make_integer_sequence<int, Count>{});
}

/// What a kernel does with an array.
template <class T>
struct In {
  using type = T;
  static constexpr bool reads = true, writes = false;
  const T* data;
};
template <class T>
struct Out {
  using type = T;
  static constexpr bool reads = false, writes = true;
  T* data;
};
template <class T>
struct InOut {
  using type = T;
  static constexpr bool reads = true, writes = true;
  T* data;
};

/// Elements that are loaded and stored at once.
template <class T, int Width>
struct alignas(Width * sizeof(T)) Vector {
  T values[Width];
};

/// A thread's elements of one array: `Depth` vectors, all of which are loaded before the first is waited for.
template <class Array, int Width, int Depth>
struct Fragment {
  using type = typename Array::type;
  using vector = Vector<type, Width>;

  Array array;
  vector own[Depth];

  __device__ void load(int depth, std::ptrdiff_t first) {
    if constexpr (Array::reads) own[depth] = *reinterpret_cast<const vector*>(array.data + first);
  }
  __device__ void store(int depth, std::ptrdiff_t first) const {
    if constexpr (Array::writes) *reinterpret_cast<vector*>(array.data + first) = own[depth];
  }
  /// Of the elements from `first` on those that there are, one by one.
  __device__ void load_edge(int depth, std::ptrdiff_t first, std::ptrdiff_t count) {
    if constexpr (Array::reads)
      unrolled<Width>([&](int e) {
        if (first + e >= 0 && first + e < count) own[depth].values[e] = array.data[first + e];
      });
  }
  __device__ void store_edge(int depth, std::ptrdiff_t first, std::ptrdiff_t count) const {
    if constexpr (Array::writes)
      unrolled<Width>([&](int e) {
        if (first + e >= 0 && first + e < count) array.data[first + e] = own[depth].values[e];
      });
  }
};

/// Edges and middle go through the same instructions. Which copy of the body an element goes through depends on where
/// arrays begin: bits do not where the body computes with numbers that nvcc fuses no products and sums of (Rounded).
/// @param whole all of the block's elements are there
template <int Width, int Depth, class Body, class... Fragments>
__device__ void one_tile(const Body& body, bool whole, std::ptrdiff_t first, std::ptrdiff_t stride,
                         std::ptrdiff_t count, Fragments... fragments) {
  if (whole)
    unrolled<Depth>([&](int depth) { (fragments.load(depth, first + depth * stride), ...); });
  else
    unrolled<Depth>([&](int depth) { (fragments.load_edge(depth, first + depth * stride, count), ...); });
  unrolled<Depth * Width>([&](int i) { body(fragments.own[i / Width].values[i % Width]...); });
  if (whole)
    unrolled<Depth>([&](int depth) { (fragments.store(depth, first + depth * stride), ...); });
  else
    unrolled<Depth>([&](int depth) { (fragments.store_edge(depth, first + depth * stride, count), ...); });
}

/// `shift` elements before the arrays' begin lies a boundary of vectors.
template <int Width, int Depth, class Body, class... Arrays>
__global__ void __launch_bounds__(block_threads)
    elementwise_kernel(Body body, std::size_t count, unsigned shift, Arrays... arrays) {
  const auto operation = body.begin();
  const std::size_t tile = std::size_t{Width} * Depth * blockDim.x;
  for (std::size_t begin = tile * blockIdx.x; begin < count + shift; begin += tile * gridDim.x) {
    const auto first =
        static_cast<std::ptrdiff_t>(begin + std::size_t{Width} * threadIdx.x) - static_cast<std::ptrdiff_t>(shift);
    const bool whole = begin >= shift && begin + tile <= count + shift;
    one_tile<Width, Depth>(operation, whole, first, static_cast<std::ptrdiff_t>(Width * blockDim.x),
                           static_cast<std::ptrdiff_t>(count), Fragment<Arrays, Width, Depth>{arrays, {}}...);
  }
}

/// How many elements lie between an address and the boundary of vectors before it.
template <int Width, class Array>
[[nodiscard]] unsigned shift_of(const Array& array) {
  return static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(array.data) / sizeof(typename Array::type) % Width);
}

/// Enqueues body(a[i], b[i]…) for every i; a body's `begin()` gives what each thread then calls.
///
/// 16 bytes of the widest array are moved at once where all arrays lie alike on boundaries of vectors, else one
/// element; each thread has as much under way either way.
template <class Body, class First, class... Arrays>
void for_each_element(CudaStreamRef stream, const Body& body, std::size_t count, const First& first,
                      const Arrays&... arrays) {
  constexpr std::size_t widest = std::max({sizeof(typename First::type), sizeof(typename Arrays::type)...});
  constexpr int width = static_cast<int>(16 / widest);
  constexpr int depth = 2;
  const unsigned shift = shift_of<width>(first);
  const bool alike = ((shift_of<width>(arrays) == shift) && ...);
  const std::size_t tile = std::size_t{width} * depth * block_threads;
  const unsigned blocks = blocks_for((count + shift + tile - 1) / tile, 32);
  if (alike)
    launch(stream, blocks, block_threads, &elementwise_kernel<width, depth, Body, First, Arrays...>, body, count, shift,
           first, arrays...);
  else
    launch(stream, blocks, block_threads, &elementwise_kernel<1, width * depth, Body, First, Arrays...>, body, count,
           0U, first, arrays...);
}

}  // namespace distx::cuda::detail
