// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

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
template <class Out, class Left, class Right>
void check_product(const Out& out, const Left& left, const Right& right) {
  const auto shape = [](const auto& m) { return std::to_string(m.rows) + " x " + std::to_string(m.columns); };
  const auto holds = [](const auto& m) { return m.values.size() == m.rows * m.columns; };
  if (left.columns != right.rows || out.rows != left.rows || out.columns != right.columns || !holds(out) ||
      !holds(left) || !holds(right))
    throw InvalidArgument("cannot multiply " + shape(left) + " by " + shape(right) + " into " + shape(out) +
                              ": shapes must be (m, k), (k, n) and (m, n), and spans have rows * columns elements",
                          {.operation = "local_matmul"});
}

DISTX_KERNELS_BEGIN
/// Adds scale * left * right to `out`, block by block. Blocks of both operands are packed so that the innermost loop
/// reads memory in order, and padded with zeros.
struct AddProduct {
  static constexpr std::size_t most_rows = 72, most_inner = 256, most_columns = 256, tile_rows = 6;

  template <std::size_t Bytes, class T>
  static void run(MatrixRef<T> out, MatrixRef<const T> left, MatrixRef<const T> right, T scale, T* of_left,
                  T* of_right) {
    constexpr std::size_t tile_columns = 2 * Bytes / sizeof(T);
    for (std::size_t column = 0; column < out.columns; column += most_columns) {
      const std::size_t columns = std::min(most_columns, out.columns - column);
      for (std::size_t k = 0; k < left.columns; k += most_inner) {
        const std::size_t inner = std::min(most_inner, left.columns - k);
        pack<Bytes, tile_columns>(right.transpose(), column, columns, k, inner, T{1}, of_right);
        for (std::size_t row = 0; row < out.rows; row += most_rows) {
          const std::size_t rows = std::min(most_rows, out.rows - row);
          pack<Bytes, tile_rows>(left, row, rows, k, inner, scale, of_left);
          for (std::size_t j = 0; j < columns; j += tile_columns)
            for (std::size_t i = 0; i < rows; i += tile_rows) {
              T product[tile_rows * tile_columns];
              multiply<Bytes>(of_left + i * inner, of_right + j * inner, inner, product);
              add<Bytes>(out, row + i, std::min(tile_rows, rows - i), column + j, std::min(tile_columns, columns - j),
                         product);
            }
        }
      }
    }
  }

 private:
  /// Writes `count` rows from `row` on, `Tile` at a time: of these, column after column.
  template <std::size_t Bytes, std::size_t Tile, class T>
  static void pack(MatrixRef<const T> from, std::size_t row, std::size_t count, std::size_t k, std::size_t inner,
                   T scale, T* to) {
    using V = Lanes<T, Bytes>;
    const std::size_t next_row = from.transposed ? 1 : from.columns, next_column = from.transposed ? from.rows : 1;
    for (std::size_t tile = 0; tile < count; tile += Tile) {
      const std::size_t whole = std::min(Tile, count - tile);
      const T* at = from.at(row + tile, k);
      for (std::size_t p = 0; p < inner; ++p, at += next_column, to += Tile) {
        if constexpr (Tile % V::size == 0) {
          if (whole == Tile && next_row == 1) {
            for (std::size_t i = 0; i < Tile; i += V::size) (V(scale) * V::load(at + i)).store(to + i);
            continue;
          }
        }
        for (std::size_t i = 0; i < whole; ++i) to[i] = scale * at[i * next_row];
        for (std::size_t i = whole; i < Tile; ++i) to[i] = T{0};
      }
    }
  }
  /// Adds a part of a tile to a part of `out`.
  template <std::size_t Bytes, class T>
  static void add(MatrixRef<T> out, std::size_t row, std::size_t rows, std::size_t column, std::size_t columns,
                  const T* tile) {
    using V = Lanes<T, Bytes>;
    const std::size_t next_row = out.transposed ? 1 : out.columns, next_column = out.transposed ? out.rows : 1;
    T* at = out.at(row, column);
    for (std::size_t r = 0; r < rows; ++r, at += next_row, tile += 2 * V::size)
      if (columns == 2 * V::size && next_column == 1)
        for (std::size_t c = 0; c < columns; c += V::size) (V::load(at + c) + V::load(tile + c)).store(at + c);
      else
        for (std::size_t c = 0; c < columns; ++c) at[c * next_column] += tile[c];
  }
  /// Computes one tile of the product. Without loops over its rows, which -O2 keeps, and with them the sums in memory.
  template <std::size_t Bytes, class T>
  static void multiply(const T* left, const T* right, std::size_t inner, T* product) {
    using V = Lanes<T, Bytes>;
    using Native = typename V::native;
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      Native low[] = {(static_cast<void>(I), Native{})...}, high[] = {(static_cast<void>(I), Native{})...};
      for (std::size_t p = 0; p < inner; ++p, left += tile_rows, right += 2 * V::size) {
        const auto first = V::load(right).to_native(), second = V::load(right + V::size).to_native();
        if constexpr (Bytes > common_lane_bytes && has_wide_lanes)
          (add_products(left[I], first, second, low[I], high[I]), ...);
        else
          ((low[I] += V::from_native(left[I] * first).to_native(),
            high[I] += V::from_native(left[I] * second).to_native()),
           ...);
      }
      ((V::from_native(low[I]).store(product + I * 2 * V::size),
        V::from_native(high[I]).store(product + I * 2 * V::size + V::size)),
       ...);
    }(std::make_index_sequence<tile_rows>());
  }
};
DISTX_KERNELS_END

}  // namespace detail

/// Computes out = keep * out + scale * left * right, with out (m, n), left (m, k) and right (k, n) of float or double.
///
/// Runs on the calling thread, blocked for the caches, in a fixed order: the same operands give the same bits on all
/// processors with AVX2 and FMA, where each product is added with one rounding; on others it is rounded as well. `out`
/// must not overlap the operands; with keep = 0 its old values are not read. Needs no library; a BLAS is faster.
/// @throws InvalidArgument if the shapes do not fit
template <std::floating_point T>
void local_matmul(HostStream, MatrixRef<T> out, std::type_identity_t<MatrixRef<const T>> left,
                  std::type_identity_t<MatrixRef<const T>> right, std::type_identity_t<T> scale = 1,
                  std::type_identity_t<T> keep = 0) {
  detail::check_product(out, left, right);
  for (T& value : out.values) value = keep == 0 ? T{0} : keep * value;
  using Kernel = detail::AddProduct;
  const Buffer<T> blocks((Kernel::most_rows + Kernel::most_columns) * Kernel::most_inner, uninitialized);
  T* const of_left = blocks.data();
  detail::run_on_lanes<Kernel>(detail::lane_bytes(), out, left, right, scale, of_left,
                               of_left + Kernel::most_rows * Kernel::most_inner);
}

}  // namespace distx::inline DISTX_ABI
