// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cmath>
#include <limits>

#include "distx/cuda/detail/tensor_kernels.hpp"
#include "distx/cuda/kernels/elementwise.cuh"
#include "distx/cuda/kernels/reductions.cuh"

// Causal attention in tiles, as FlashAttention-2 (Dao, 2023, arXiv 2307.08691): scores exist for one tile of queries
// and keys at a time. Products are by FMA in the elements' type. Each number of a result is the sum of one thread, in
// the order of the tokens, so the same operands give the same bits.
namespace distx::inline DISTX_ABI::cuda::detail {

/// Numbers of each thread in a row and in a column of a tile, 16 bytes; 16 x 16 threads compute a tile.
template <class T>
inline constexpr unsigned tile_own = 16 / sizeof(T);
template <class T>
inline constexpr unsigned tile_width = 16 * tile_own<T>;
/// Columns of operands that are in shared memory at a time.
template <class T>
inline constexpr unsigned tile_depth = tile_width<T> / 2;
/// Elements between rows of shared memory, of which neighbors begin in different banks.
template <class T>
inline constexpr unsigned tile_step = tile_width<T> + tile_own<T>;
static_assert(block_threads == 16 * 16);

/// Shared memory for two tiles. Each use of it begins with a barrier.
[[maybe_unused]] static __device__ void* tile_memory() {
  alignas(16) __shared__ unsigned char memory[2 * 64 * 272];
  static_assert(sizeof memory == 2 * tile_width<float> * tile_step<float> * sizeof(float));
  return memory;
}

/// This thread's numbers of a tile, which begin at row `tile_row` and column `tile_column`.
template <class T>
struct Tile {
  T values[tile_own<T>][tile_own<T>]{};
};
template <class T>
__device__ unsigned tile_row() {
  return threadIdx.x / 16 * tile_own<T>;
}
template <class T>
__device__ unsigned tile_column() {
  return threadIdx.x % 16 * tile_own<T>;
}
template <class T, class F>
__device__ void for_each_own(F&& f) {
  unrolled<static_cast<int>(tile_own<T>)>([&](int i) { f(static_cast<unsigned>(i)); });
}
/// Calls f(i, j) with each index of a Tile.
template <class T, class F>
__device__ void for_each_of_tile(F&& f) {
  for_each_own<T>([&](unsigned i) { for_each_own<T>([&](unsigned j) { f(i, j); }); });
}

/// Rows of one head: queries, keys, values, results or gradients.
template <class T>
struct HeadRows {
  T* first;
  std::size_t step, rows, columns;

  /// Returns the rows from a tile's first one on.
  [[nodiscard]] __device__ HeadRows tile(std::size_t number) const {
    const std::size_t before = number * tile_width<T>;
    return {first + before * step, step, rows - before, columns};
  }
  [[nodiscard]] __device__ T at(std::size_t row, std::size_t column) const {
    return row < rows && column < columns ? first[row * step + column] : 0;
  }
};

/// The operands of the kernels. A block computes `tile_width` rows and columns of a head's results.
template <class T>
struct Attention {
  /// The softmax of a query's scores, and the mean that its gradient subtracts.
  struct Query {
    T largest;  ///< score
    T share;    ///< 1 / sum of exponentials
    T mean;     ///< of the weights' gradients, weighted by the weights

    [[nodiscard]] __device__ T weight(T score) const { return std::exp(score - largest) * share; }
  };

  std::size_t length, heads, size, of_batches;
  const T *x, *gradient;
  Query* queries;
  T* out;
  T scale = 0;
  std::size_t tiles = 0, strips = 0;

  Attention(const Extents<5>& extents, const T* operand, const T* slope, T* sums, T* result)
      : length(extents[1]),
        heads(extents[3]),
        size(extents[4]),
        of_batches(extents[0] * heads),
        x(operand),
        gradient(slope),
        queries(reinterpret_cast<Query*>(sums)),
        out(result),
        scale(1 / std::sqrt(static_cast<T>(size))),
        tiles((length + tile_width<T> - 1) / tile_width<T>),
        strips((size + tile_width<T> - 1) / tile_width<T>) {}

  /// Blocks of the kernels whose results are rows of `size` columns.
  [[nodiscard]] std::size_t blocks() const { return of_batches * tiles * strips; }

  // Blocks that have more tiles to process have lower numbers, since these start first.
  [[nodiscard]] __device__ std::size_t head() const { return blockIdx.x % of_batches; }
  [[nodiscard]] __device__ std::size_t column() const { return blockIdx.x / of_batches % strips * tile_width<T>; }
  [[nodiscard]] __device__ std::size_t tile_of_keys() const { return blockIdx.x / of_batches / strips; }
  [[nodiscard]] __device__ std::size_t tile_of_queries() const { return tiles - 1 - tile_of_keys(); }

  /// @param which  0, 1, 2 for queries, keys, values
  template <class U>
  [[nodiscard]] __device__ HeadRows<U> part(U* of_x, unsigned which) const {
    const std::size_t row = heads * size, batch = head() / heads;
    return {of_x + (batch * length * 3 + which) * row + head() % heads * size, 3 * row, length, size};
  }
  template <class U>
  [[nodiscard]] __device__ HeadRows<U> result(U* of_result) const {
    const std::size_t row = heads * size, batch = head() / heads;
    return {of_result + batch * length * row + head() % heads * size, row, length, size};
  }
};

/// Adds the products of this thread's numbers of two rows of shared memory; those of row i of the tile if takes(i).
template <class T, class Takes>
__device__ void add_outer_product(const T* left, const T* right, Tile<T>& sums, Takes&& takes) {
  using Own = Vector<T, static_cast<int>(tile_own<T>)>;
  const Own a = *reinterpret_cast<const Own*>(left + tile_row<T>());
  const Own b = *reinterpret_cast<const Own*>(right + tile_column<T>());
  for_each_own<T>([&](unsigned i) {
    if (takes(i)) for_each_own<T>([&](unsigned j) { sums.values[i][j] += a.values[i] * b.values[j]; });
  });
}

/// Copies columns of a tile to shared memory, each as a row. The lanes of a warp write to different banks.
template <class T>
__device__ void load_columns(const HeadRows<const T>& from, std::size_t first, T* to) {
  constexpr unsigned own = tile_own<T>;
  for (unsigned i = threadIdx.x; i < tile_width<T> * tile_depth<T>; i += block_threads) {
    const unsigned row = i / 32 % 16 * own + i % own, column = i / 512 * (32 / own) + i % 32 / own;
    to[column * tile_step<T> + row] = from.at(row, first + column);
  }
}

/// Returns the products of each row of `left` with each row of `right`.
template <class T>
__device__ Tile<T> products(const HeadRows<const T>& left, const HeadRows<const T>& right) {
  T* const a = static_cast<T*>(tile_memory());
  T* const b = a + tile_depth<T> * tile_step<T>;
  const bool needed = tile_row<T>() < left.rows && tile_column<T>() < right.rows;
  Tile<T> sums;
  for (std::size_t first = 0; first < left.columns; first += tile_depth<T>) {
    __syncthreads();
    load_columns(left, first, a);
    load_columns(right, first, b);
    __syncthreads();
    const auto count = static_cast<unsigned>(std::min<std::size_t>(tile_depth<T>, left.columns - first));
    for (unsigned k = 0; needed && k < count; ++k)
      add_outer_product(a + k * tile_step<T>, b + k * tile_step<T>, sums, [](unsigned) { return true; });
  }
  return sums;
}

template <class T>
__device__ Tile<T> scaled(Tile<T> tile, T factor) {
  for_each_of_tile<T>([&](unsigned i, unsigned j) { tile.values[i][j] *= factor; });
  return tile;
}

/// Adds to each row of `sums` the rows, from a column on, times their weights: the row on the right, `weights` has its
/// weights in a column. Those for which sees(row on the left, row on the right) is false are not used, even if they are
/// not finite.
template <class T, class Sees>
__device__ void add_weighted(const Tile<T>& weights, const HeadRows<const T>& rows, std::size_t column, Sees&& sees,
                             Tile<T>& sums) {
  using Own = Vector<T, static_cast<int>(tile_own<T>)>;
  T* const a = static_cast<T*>(tile_memory());
  T* const b = a + tile_width<T> * tile_step<T>;
  __syncthreads();
  for_each_own<T>([&](unsigned j) {
    Own each;
    for_each_own<T>([&](unsigned i) { each.values[i] = weights.values[i][j]; });
    *reinterpret_cast<Own*>(a + (tile_column<T>() + j) * tile_step<T> + tile_row<T>()) = each;
  });
  for (unsigned i = threadIdx.x; i < tile_width<T> * tile_width<T>; i += block_threads)
    b[i / tile_width<T> * tile_step<T> + i % tile_width<T>] = rows.at(i / tile_width<T>, column + i % tile_width<T>);
  __syncthreads();
  const auto count = static_cast<unsigned>(std::min<std::size_t>(tile_width<T>, rows.rows));
  const bool needed = column + tile_column<T>() < rows.columns;
  for (unsigned r = 0; needed && r < count; ++r)
    add_outer_product(a + r * tile_step<T>, b + r * tile_step<T>, sums,
                      [&](unsigned i) { return sees(tile_row<T>() + i, r); });
}

template <class T>
__device__ void store_tile(const HeadRows<T>& to, std::size_t column, const Tile<T>& tile) {
  for_each_of_tile<T>([&](unsigned i, unsigned j) {
    const std::size_t row = tile_row<T>() + i;
    const std::size_t at = column + tile_column<T>() + j;
    if (row < to.rows && at < to.columns) to.first[row * to.step + at] = tile.values[i][j];
  });
}

/// The softmax of the rows of a tile, of which parts are known one by one.
template <class T>
struct RunningSoftmax {
  T largest[tile_own<T>];
  T sum[tile_own<T>]{};   // of this thread's columns
  T kept[tile_own<T>]{};  // the factor by which the last part changed the weights of earlier ones

  bool needed;  // whether this thread's warp has rows

  __device__ explicit RunningSoftmax(std::size_t rows) : needed(threadIdx.x / 32 * 2 * tile_own<T> < rows) {
    for_each_own<T>([&](unsigned i) { largest[i] = -std::numeric_limits<T>::infinity(); });
  }
  /// Replaces scores by exp(score - the largest so far), or 0 if sees(row, column) is false.
  template <class Sees>
  __device__ void add(Tile<T>& scores, Sees&& sees) {
    if (!needed) return;
    const auto larger = [](T a, T b) { return a < b ? b : a; };
    for_each_own<T>([&](unsigned i) {
      T(&row)[tile_own<T>] = scores.values[i];
      T most = largest[i];
      for_each_own<T>([&](unsigned j) {
        if (!sees(tile_row<T>() + i, tile_column<T>() + j)) row[j] = -std::numeric_limits<T>::infinity();
        most = larger(most, row[j]);
      });
      most = over_warp<16>(most, larger);
      kept[i] = std::exp(largest[i] - most);
      largest[i] = most;
      sum[i] *= kept[i];
      for_each_own<T>([&](unsigned j) { sum[i] += row[j] = std::exp(row[j] - most); });
    });
  }
  /// Returns 1 / sum of the exponentials of row i.
  [[nodiscard]] __device__ T share(unsigned i) const {
    return needed ? 1 / over_warp<16>(sum[i], [](T a, T b) { return a + b; }) : 0;
  }
};

/// The results of a tile of queries.
template <class T>
__global__ void __launch_bounds__(block_threads, 2) attention_kernel(const Attention<T> attention) {
  const std::size_t own = attention.tile_of_queries(), column = attention.column();
  const auto query = attention.part(attention.x, 0).tile(own);
  const auto key = attention.part(attention.x, 1), value = attention.part(attention.x, 2);
  RunningSoftmax<T> softmax(query.rows);
  Tile<T> sums;
  for (std::size_t tile = 0; tile <= own; ++tile) {
    const auto sees = [=](unsigned of_query, unsigned of_key) { return tile < own || of_key <= of_query; };
    auto weights = scaled(products(query, key.tile(tile)), attention.scale);
    softmax.add(weights, sees);
    for_each_of_tile<T>([&](unsigned i, unsigned j) { sums.values[i][j] *= softmax.kept[i]; });
    add_weighted(weights, value.tile(tile), column, sees, sums);
  }
  for_each_own<T>([&](unsigned i) {
    const T share = softmax.share(i);
    for_each_own<T>([&](unsigned j) { sums.values[i][j] *= share; });
  });
  store_tile(attention.result(attention.out).tile(own), column, sums);
}

/// The numbers of a tile of queries that the gradients need; a head has one strip of them.
template <class T>
__global__ void __launch_bounds__(block_threads, 2) attention_queries_kernel(const Attention<T> attention) {
  const std::size_t own = attention.tile_of_queries();
  const auto query = attention.part(attention.x, 0).tile(own), slope = attention.result(attention.gradient).tile(own);
  const auto key = attention.part(attention.x, 1), value = attention.part(attention.x, 2);
  RunningSoftmax<T> softmax(query.rows);
  T along[tile_own<T>]{};
  for (std::size_t tile = 0; tile <= own; ++tile) {
    const auto sees = [=](unsigned of_query, unsigned of_key) { return tile < own || of_key <= of_query; };
    const auto slopes = products(slope, value.tile(tile));
    auto weights = scaled(products(query, key.tile(tile)), attention.scale);
    softmax.add(weights, sees);
    for_each_own<T>([&](unsigned i) { along[i] *= softmax.kept[i]; });
    for_each_of_tile<T>([&](unsigned i, unsigned j) {
      if (sees(tile_row<T>() + i, tile_column<T>() + j)) along[i] += weights.values[i][j] * slopes.values[i][j];
    });
  }
  for_each_own<T>([&](unsigned i) {
    const T share = softmax.share(i);
    const T mean = softmax.needed ? share * over_warp<16>(along[i], [](T a, T b) { return a + b; }) : 0;
    const std::size_t row = own * tile_width<T> + tile_row<T>() + i;
    if (tile_column<T>() == 0 && row < attention.length)
      attention.queries[attention.head() * attention.length + row] = {softmax.largest[i], share, mean};
  });
}

/// The gradients of a tile of queries.
template <class T>
__global__ void __launch_bounds__(block_threads, 2) attention_query_gradient_kernel(const Attention<T> attention) {
  const std::size_t own = attention.tile_of_queries(), column = attention.column();
  const auto query = attention.part(attention.x, 0).tile(own), slope = attention.result(attention.gradient).tile(own);
  const auto key = attention.part(attention.x, 1), value = attention.part(attention.x, 2);
  typename Attention<T>::Query known[tile_own<T>]{};
  for_each_own<T>([&](unsigned i) {
    const std::size_t row = own * tile_width<T> + tile_row<T>() + i;
    if (row < attention.length) known[i] = attention.queries[attention.head() * attention.length + row];
  });
  Tile<T> sums;
  for (std::size_t tile = 0; tile <= own; ++tile) {
    const auto sees = [=](unsigned of_query, unsigned of_key) { return tile < own || of_key <= of_query; };
    auto weights = scaled(products(query, key.tile(tile)), attention.scale);
    const auto slopes = products(slope, value.tile(tile));
    for_each_of_tile<T>([&](unsigned i, unsigned j) {
      T& each = weights.values[i][j];
      each = known[i].weight(each) * (slopes.values[i][j] - known[i].mean) * attention.scale;
    });
    add_weighted(weights, key.tile(tile), column, sees, sums);
  }
  store_tile(attention.part(attention.out, 0).tile(own), column, sums);
}

/// The gradients of a tile of keys and values.
template <class T>
__global__ void __launch_bounds__(block_threads, 2) attention_key_gradient_kernel(const Attention<T> attention) {
  const std::size_t own = attention.tile_of_keys(), column = attention.column();
  const auto query = attention.part(attention.x, 0), slope = attention.result(attention.gradient);
  const auto key = attention.part(attention.x, 1).tile(own), value = attention.part(attention.x, 2).tile(own);
  Tile<T> of_keys, of_values;
  for (std::size_t tile = own; tile < attention.tiles; ++tile) {
    const auto sees = [=](unsigned of_key, unsigned of_query) { return tile > own || of_key <= of_query; };
    auto weights = scaled(products(key, query.tile(tile)), attention.scale);
    auto slopes = products(value, slope.tile(tile));
    for_each_own<T>([&](unsigned j) {
      const std::size_t row = tile * tile_width<T> + tile_column<T>() + j;
      if (row >= attention.length) return;
      const auto known = attention.queries[attention.head() * attention.length + row];
      for_each_own<T>([&](unsigned i) {
        T& weight = weights.values[i][j];
        weight = known.weight(weight);
        slopes.values[i][j] = weight * (slopes.values[i][j] - known.mean) * attention.scale;
      });
    });
    add_weighted(weights, slope.tile(tile), column, sees, of_values);
    add_weighted(slopes, query.tile(tile), column, sees, of_keys);
  }
  store_tile(attention.part(attention.out, 1).tile(own), column, of_keys);
  store_tile(attention.part(attention.out, 2).tile(own), column, of_values);
}

template <class T>
void enqueue_attention(CudaStreamRef stream, const Extents<5>& extents, const T* x, T* out) {
  const Attention<T> attention(extents, x, nullptr, nullptr, out);
  enqueue<&attention_kernel<T>>(stream, attention.blocks(), block_threads, attention);
}
template <class T>
void enqueue_attention_backward(CudaStreamRef stream, const Extents<5>& extents, const T* x, const T* gradient,
                                T* queries, T* out) {
  const Attention<T> attention(extents, x, gradient, queries, out);
  auto one_strip = attention;
  one_strip.strips = 1;
  enqueue<&attention_queries_kernel<T>>(stream, one_strip.blocks(), block_threads, one_strip);
  enqueue<&attention_query_gradient_kernel<T>>(stream, attention.blocks(), block_threads, attention);
  enqueue<&attention_key_gradient_kernel<T>>(stream, attention.blocks(), block_threads, attention);
}

}  // namespace distx::inline DISTX_ABI::cuda::detail
