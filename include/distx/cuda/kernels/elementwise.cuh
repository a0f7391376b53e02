// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

#include "distx/cuda/kernels/launch.cuh"

// The kernel of all operations that work element by element on arrays of one length.
namespace distx::inline DISTX_ABI::cuda::detail {

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

/// Returns the `Width` elements from number `from` on of two vectors; `from` is at most Width.
template <class T, int Width>
__device__ Vector<T, Width> part_of_two(const Vector<T, Width>& low, const Vector<T, Width>& high, unsigned from) {
  static_assert(Width <= 16);
  T all[2 * Width];
  unrolled<Width>([&](int e) { all[e] = low.values[e], all[Width + e] = high.values[e]; });
  // Moves by powers of two, so that no index depends on `from` and all stay in registers.
  unrolled<5>([&](int bit) {
    const int by = 1 << bit;
    if (by <= Width && (from & static_cast<unsigned>(by)) != 0)
      unrolled<2 * Width>([&](int e) {
        if (e + by < 2 * Width) all[e] = all[e + by];
      });
  });
  Vector<T, Width> part;
  unrolled<Width>([&](int e) { part.values[e] = all[e]; });
  return part;
}

/// Returns the vector of the warp's lane before this one.
template <class T, int Width>
__device__ Vector<T, Width> of_lane_before(const Vector<T, Width>& own) {
  constexpr int bytes = sizeof(own), words = bytes < 4 ? 1 : bytes / 4;
  unsigned word[words] = {};
  std::memcpy(word, &own, bytes);
  unrolled<words>([&](int w) { word[w] = __shfl_up_sync(0xffffffffU, word[w], 1); });
  Vector<T, Width> before;
  std::memcpy(&before, word, bytes);
  return before;
}

/// A thread's vector of one array. The threads' vectors are cut at boundaries of vectors in the first array; in this
/// one they begin `off` elements after a boundary.
template <class Array, int Width>
struct Fragment {
  using type = typename Array::type;
  using vector = Vector<type, Width>;
  using Word = typename Register<sizeof(vector)>::type;

  Array array;
  unsigned off;
  vector own;

  /// Loads with one instruction, also where not all elements are used.
  static __device__ vector get(const Array& array, std::ptrdiff_t first) {
    return std::bit_cast<vector>(*reinterpret_cast<const Word*>(array.data + first));
  }
  /// Stores with one instruction. nvcc splits the plain assignment of a vector that was never loaded into one store per
  /// element; the intrinsic keeps it whole.
  static __device__ void put(const Array& array, std::ptrdiff_t first, const vector& values) {
    __stwb(reinterpret_cast<Word*>(array.data + first), std::bit_cast<Word>(values));
  }
  __device__ void load(std::ptrdiff_t first) {
    if constexpr (Array::reads) own = get(array, first);
  }
  /// Loads by whole vectors, wherever the array begins.
  __device__ void load_across(std::ptrdiff_t first) {
    if constexpr (Array::reads) {
      own = get(array, first - off);
      if (off != 0) own = part_of_two(own, get(array, first - off + Width), off);
    }
  }
  __device__ void store(std::ptrdiff_t first) const {
    if constexpr (Array::writes) put(array, first, own);
  }
  /// Stores by whole vectors, wherever the array begins: each has the end of the lane before and the begin of this
  /// one's. The elements at the warp's ends are stored one by one.
  __device__ void store_across(std::ptrdiff_t first) const {
    if constexpr (Array::writes) {
      if (off == 0) return store(first);
      const unsigned lane = threadIdx.x % 32;
      const vector before = of_lane_before(own);
      if (lane != 0) put(array, first - off, part_of_two(before, own, Width - off));
      unrolled<Width>([&](int e) {
        const bool in_next = e + off >= Width;  // of the vector that the next lane stores
        if (lane == (in_next ? 31 : 0)) array.data[first + e] = own.values[e];
      });
    }
  }
  /// Loads, one by one, those elements from `first` on that exist.
  __device__ void load_edge(std::ptrdiff_t first, std::ptrdiff_t count) {
    if constexpr (Array::reads)
      unrolled<Width>([&](int e) {
        if (first + e >= 0 && first + e < count) own.values[e] = array.data[first + e];
      });
  }
  __device__ void store_edge(std::ptrdiff_t first, std::ptrdiff_t count) const {
    if constexpr (Array::writes)
      unrolled<Width>([&](int e) {
        if (first + e >= 0 && first + e < count) array.data[first + e] = own.values[e];
      });
  }
};

/// Elements between an array's begin and the boundary of vectors before it.
template <int Width, class Array>
[[nodiscard]] __host__ __device__ unsigned shift_of(const Array& array) {
  return static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(array.data) / sizeof(typename Array::type) % Width);
}

/// Applies the body to one tile. Tiles at an array's edge and tiles in its middle run the same arithmetic, so that an
/// element's bits do not depend on the array's address, provided that the body computes with `Rounded` numbers.
/// @param whole  whether the tile's vectors lie within the arrays
template <bool Alike, int Width, class Body, class... Fragments>
__device__ void one_tile(const Body& body, bool whole, std::ptrdiff_t first, std::ptrdiff_t count,
                         Fragments... fragments) {
  if (!whole)
    (fragments.load_edge(first, count), ...);
  else if constexpr (Alike)
    (fragments.load(first), ...);
  else
    (fragments.load_across(first), ...);
  unrolled<Width>([&](int i) { body(fragments.own.values[i]...); });
  if (!whole) {
    (fragments.store_edge(first, count), ...);
  } else if constexpr (Alike) {
    (fragments.store(first), ...);
  } else {
    (fragments.store_across(first), ...);
  }
}

/// Elements of a tile: each thread of a block has one vector. Two vectors per thread, loops over tiles and streaming
/// loads and stores are slower, see docs/benchmarks_gpu.md.
template <int Width>
inline constexpr std::size_t tile_elements = std::size_t{Width} * block_threads;

/// Applies the body to tile number `tile` of arrays, the first of which begins `shift` elements after a boundary of
/// vectors.
/// @tparam Alike  whether all of them do
template <bool Alike, int Width, class Body, class... Arrays>
__device__ void tile_of(const Body& body, std::size_t tile, std::size_t count, unsigned shift, Arrays... arrays) {
  constexpr std::size_t elements = tile_elements<Width>;
  constexpr std::size_t margin = Alike ? 0 : Width;  // vectors begin before the tile and end after it
  const std::size_t begin = tile * elements;
  const auto first =
      static_cast<std::ptrdiff_t>(begin + std::size_t{Width} * threadIdx.x) - static_cast<std::ptrdiff_t>(shift);
  const bool whole = begin >= shift + margin && begin + elements + margin <= count + shift;
  one_tile<Alike, Width>(
      body, whole, first, static_cast<std::ptrdiff_t>(count),
      Fragment<Arrays, Width>{arrays, Alike ? 0U : (shift_of<Width>(arrays) + Width - shift) % Width, {}}...);
}

template <bool Alike, int Width, class Body, class... Arrays>
__global__ void __launch_bounds__(block_threads)
    elementwise_kernel(Body body, std::size_t count, unsigned shift, Arrays... arrays) {
  tile_of<Alike, Width>(body, blockIdx.x, count, shift, arrays...);
}

/// Vectors of the widest array have 16 bytes, the most that one instruction moves.
template <class... Arrays>
inline constexpr int vector_width = static_cast<int>(16 / std::max({sizeof(typename Arrays::type)...}));

/// Enqueues body(a[i], b[i], …) for every i. Moves 16 bytes of the widest array at once, wherever the arrays begin.
template <class Body, class First, class... Arrays>
void for_each_element(CudaStreamRef stream, const Body& body, std::size_t count, const First& first,
                      const Arrays&... arrays) {
  constexpr int width = vector_width<First, Arrays...>;
  const unsigned shift = shift_of<width>(first);
  const std::size_t blocks = (count + shift + tile_elements<width> - 1) / tile_elements<width>;
  const auto by = [&]<bool Alike>() {
    enqueue<&elementwise_kernel<Alike, width, Body, First, Arrays...>>(stream, blocks, block_threads, body, count,
                                                                       shift, first, arrays...);
  };
  const bool alike = ((shift_of<width>(arrays) == shift) && ...);
  if constexpr (sizeof...(Arrays) > 0)
    if (!alike) return by.template operator()<false>();
  by.template operator()<true>();
}

}  // namespace distx::inline DISTX_ABI::cuda::detail
