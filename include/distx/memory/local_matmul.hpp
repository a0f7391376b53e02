// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include "distx/core/error.hpp"
#include "distx/memory/buffer.hpp"
#include "distx/memory/lanes.hpp"

namespace distx::inline DISTX_ABI {

/// A non-owning view of a matrix, row-major in memory, or column-major if `transposed`.
template <class T, MemorySpace Space = Host>
struct MatrixRef {
  Span<T, Space> values;
  std::size_t rows = 0;
  std::size_t columns = 0;
  bool transposed = false;

  /// Returns the transpose, a view of the same memory.
  [[nodiscard]] MatrixRef transpose() const noexcept { return {values, columns, rows, !transposed}; }
  operator MatrixRef<const T, Space>() const noexcept  // NOLINT
    requires(!std::is_const_v<T>)
  {
    return {values, rows, columns, transposed};
  }
  /// Returns the address of an element.
  /// @pre row < rows and column < columns
  [[nodiscard]] T* at(std::size_t row, std::size_t column) const noexcept {
    return values.data() + (transposed ? column * rows + row : row * columns + column);
  }
};

namespace detail {

/// @throws InvalidArgument unless the shapes of the product fit, and each view has rows * columns elements
template <class Out, class In>
void check_product(const Out& out, const In& left, const In& right) {
  const auto shape = [](const auto& m) { return std::to_string(m.rows) + " x " + std::to_string(m.columns); };
  const auto holds = [](const auto& m) { return m.values.size() == m.rows * m.columns; };
  if (left.columns != right.rows || out.rows != left.rows || out.columns != right.columns || !holds(out) ||
      !holds(left) || !holds(right))
    throw InvalidArgument("cannot multiply " + shape(left) + " by " + shape(right) + " into " + shape(out) +
                              ": shapes must be (m, k), (k, n) and (m, n), and spans have rows * columns elements",
                          {.operation = "local_matmul"});
}

/// Blocks of both operands, packed so that the innermost loop reads memory in order, padded with zeros.
template <std::floating_point T>
class MatmulBlock {
 public:
  static constexpr std::size_t tile_rows = 4;
  static constexpr std::size_t tile_columns = 2 * Lanes<T>::size;
  static constexpr std::size_t most_rows = 64, most_inner = 256, most_columns = 256;

  MatmulBlock() : left_(most_rows * most_inner, uninitialized), right_(most_inner * most_columns, uninitialized) {}

  void pack_left(MatrixRef<const T> from, std::size_t row, std::size_t rows, std::size_t k, std::size_t inner,
                 T scale) {
    for (std::size_t tile = 0; tile < rows; tile += tile_rows)
      for (std::size_t p = 0; p < inner; ++p)
        for (std::size_t i = 0; i < tile_rows; ++i)
          left_[tile * inner + p * tile_rows + i] = tile + i < rows ? scale * *from.at(row + tile + i, k + p) : T{0};
  }
  void pack_right(MatrixRef<const T> from, std::size_t k, std::size_t inner, std::size_t column, std::size_t columns) {
    for (std::size_t tile = 0; tile < columns; tile += tile_columns)
      for (std::size_t p = 0; p < inner; ++p)
        for (std::size_t j = 0; j < tile_columns; ++j)
          right_[tile * inner + p * tile_columns + j] = tile + j < columns ? *from.at(k + p, column + tile + j) : T{0};
  }
  /// Adds the product of the packed blocks to `out`.
  void add_to(MatrixRef<T> out, std::size_t row, std::size_t rows, std::size_t column, std::size_t columns,
              std::size_t inner) const {
    for (std::size_t j = 0; j < columns; j += tile_columns)
      for (std::size_t i = 0; i < rows; i += tile_rows) {
        const auto product = tile(left_.data() + i * inner, right_.data() + j * inner, inner);
        for (std::size_t r = 0; r < std::min(tile_rows, rows - i); ++r)
          for (std::size_t c = 0; c < std::min(tile_columns, columns - j); ++c)
            *out.at(row + i + r, column + j + c) += product[r * tile_columns + c];
      }
  }

 private:
  using Tile = std::array<T, tile_rows * tile_columns>;

  static Tile tile(const T* left, const T* right, std::size_t inner) {
    using V = Lanes<T>;
    std::array<V, tile_rows> low;
    std::array<V, tile_rows> high;
    low.fill(T{0});
    high.fill(T{0});
    for (std::size_t p = 0; p < inner; ++p, left += tile_rows, right += tile_columns) {
      const V first = V::load(right);
      const V second = V::load(right + V::size);
      for (std::size_t i = 0; i < tile_rows; ++i) {
        low[i] += left[i] * first;
        high[i] += left[i] * second;
      }
    }
    Tile product;
    for (std::size_t i = 0; i < tile_rows; ++i) {
      low[i].store(product.data() + i * tile_columns);
      high[i].store(product.data() + i * tile_columns + V::size);
    }
    return product;
  }

  Buffer<T> left_;
  Buffer<T> right_;
};

}  // namespace detail

/// Computes out = keep * out + scale * left * right, with out (m, n), left (m, k) and right (k, n) of float or double.
///
/// Runs on the calling thread, blocked for the caches, in a fixed order: the same operands give the same bits. `out`
/// must not overlap the operands; with keep = 0 its old values are not read. Needs no library; a BLAS is faster.
/// @throws InvalidArgument if the shapes do not fit
template <std::floating_point T>
void local_matmul(HostStream, MatrixRef<T> out, std::type_identity_t<MatrixRef<const T>> left,
                  std::type_identity_t<MatrixRef<const T>> right, std::type_identity_t<T> scale = 1,
                  std::type_identity_t<T> keep = 0) {
  detail::check_product(out, left, right);
  for (T& value : out.values) value = keep == 0 ? T{0} : keep * value;
  using Block = detail::MatmulBlock<T>;
  Block block;
  for (std::size_t column = 0; column < out.columns; column += Block::most_columns) {
    const std::size_t columns = std::min(Block::most_columns, out.columns - column);
    for (std::size_t k = 0; k < left.columns; k += Block::most_inner) {
      const std::size_t inner = std::min(Block::most_inner, left.columns - k);
      block.pack_right(right, k, inner, column, columns);
      for (std::size_t row = 0; row < out.rows; row += Block::most_rows) {
        const std::size_t rows = std::min(Block::most_rows, out.rows - row);
        block.pack_left(left, row, rows, k, inner, scale);
        block.add_to(out, row, rows, column, columns, inner);
      }
    }
  }
}

}  // namespace distx::inline DISTX_ABI
