// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <bit>
#include <cstdint>
#include <utility>

#include "distx/cuda/kernels/launch.cuh"

// The kernel of all operations that work element by element on arrays of one length.
namespace distx::cuda::detail {

/// Calls f(0), f(1), …, f(Count - 1) without a loop, so that arrays indexed by the argument stay in registers.
template <int Count, class F>
__device__ void unrolled(F&& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) { (f(I), ...); }(std::make_integer_sequence<int, Count>{});
}

/// An array that a kernel reads, writes, or both.
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

/// Elements that one instruction loads or stores.
template <class T, int Width>
struct alignas(Width * sizeof(T)) Vector {
  T values[Width];
};

/// The register type of a vector's size.
template <std::size_t Bytes>
struct Register;
template <>
struct Register<1> {
  using type = unsigned char;
};
template <>
struct Register<2> {
  using type = unsigned short;
};
template <>
struct Register<4> {
  using type = unsigned;
};
template <>
struct Register<8> {
  using type = uint2;
};
template <>
struct Register<16> {
  using type = uint4;
};

/// A thread's elements of one array: `Depth` vectors, all of which are loaded before the first is used.
template <class Array, int Width, int Depth>
struct Fragment {
  using type = typename Array::type;
  using vector = Vector<type, Width>;

  Array array;
  vector own[Depth];

  __device__ void load(int depth, std::ptrdiff_t first) {
    if constexpr (Array::reads) own[depth] = *reinterpret_cast<const vector*>(array.data + first);
  }
  /// Stores with one instruction. nvcc splits the plain assignment of a vector that was never loaded into one store per
  /// element; the intrinsic keeps it whole.
  __device__ void store(int depth, std::ptrdiff_t first) const {
    using Word = typename Register<sizeof(vector)>::type;
    if constexpr (Array::writes) __stwb(reinterpret_cast<Word*>(array.data + first), std::bit_cast<Word>(own[depth]));
  }
  /// Loads, one by one, those elements from `first` on that exist.
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

/// Applies the body to one tile. Tiles at an array's edge and tiles in its middle run the same arithmetic, so that an
/// element's bits do not depend on the array's address, provided that the body computes with `Rounded` numbers.
/// @param whole whether all of the tile's elements exist
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

/// Applies the body to tile number `tile` of arrays that begin `shift` elements after a boundary of vectors.
template <int Width, int Depth, class Body, class... Arrays>
__device__ void tile_of(const Body& body, std::size_t tile, std::size_t count, unsigned shift, Arrays... arrays) {
  const std::size_t elements = std::size_t{Width} * Depth * blockDim.x;
  const std::size_t begin = tile * elements;
  const auto first =
      static_cast<std::ptrdiff_t>(begin + std::size_t{Width} * threadIdx.x) - static_cast<std::ptrdiff_t>(shift);
  const bool whole = begin >= shift && begin + elements <= count + shift;
  one_tile<Width, Depth>(body, whole, first, static_cast<std::ptrdiff_t>(Width * blockDim.x),
                         static_cast<std::ptrdiff_t>(count), Fragment<Arrays, Width, Depth>{arrays, {}}...);
}

template <int Width, int Depth, class Body, class... Arrays>
__global__ void __launch_bounds__(block_threads)
    elementwise_kernel(Body body, std::size_t count, unsigned shift, Arrays... arrays) {
  const std::size_t tile = std::size_t{Width} * Depth * blockDim.x;
  for (std::size_t i = blockIdx.x; i * tile < count + shift; i += gridDim.x)
    tile_of<Width, Depth>(body, i, count, shift, arrays...);
}

/// Vectors of the widest array have 16 bytes, the most that one instruction moves.
template <class... Arrays>
inline constexpr int vector_width = static_cast<int>(16 / std::max({sizeof(typename Arrays::type)...}));
/// Vectors of each array that a thread loads before it computes.
inline constexpr int vectors_in_flight = 2;

/// Elements between an array's begin and the boundary of vectors before it.
template <int Width, class Array>
[[nodiscard]] unsigned shift_of(const Array& array) {
  return static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(array.data) / sizeof(typename Array::type) % Width);
}

/// Enqueues body(a[i], b[i], …) for every i.
///
/// Moves 16 bytes of the widest array at once if all arrays begin equally far after a boundary of vectors, else single
/// elements; each thread has the same number of elements in flight either way.
template <class Body, class First, class... Arrays>
void for_each_element(CudaStreamRef stream, const Body& body, std::size_t count, const First& first,
                      const Arrays&... arrays) {
  constexpr int width = vector_width<First, Arrays...>;
  constexpr int depth = vectors_in_flight;
  const unsigned shift = shift_of<width>(first);
  const bool alike = ((shift_of<width>(arrays) == shift) && ...);
  const std::size_t tile = std::size_t{width} * depth * block_threads;
  const unsigned blocks = blocks_for((count + shift + tile - 1) / tile, 32);
  if (alike)
    enqueue<&elementwise_kernel<width, depth, Body, First, Arrays...>>(stream, blocks, block_threads, body, count,
                                                                       shift, first, arrays...);
  else
    enqueue<&elementwise_kernel<1, width * depth, Body, First, Arrays...>>(stream, blocks, block_threads, body, count,
                                                                           0U, first, arrays...);
}

}  // namespace distx::cuda::detail
