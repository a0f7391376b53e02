// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <bit>
#include <utility>

#include "distx/cuda/detail/tensor_kernels.hpp"
#include "distx/cuda/kernels/elementwise.cuh"
#include "distx/cuda/kernels/rows.cuh"

// The kernels that take rows of a table by ids, and add gradients to them. Gradients are added in their own type, in
// the order of the ids, so the same operands give the same bits.
namespace distx::inline DISTX_ABI::cuda::detail {

[[nodiscard]] __device__ inline std::uint64_t id_of(const RowIds& ids, std::size_t i) {
  switch (ids.bytes) {
    case 1:
      return static_cast<const std::uint8_t*>(ids.ids)[i];
    case 2:
      return static_cast<const std::uint16_t*>(ids.ids)[i];
    case 4:
      return static_cast<const std::uint32_t*>(ids.ids)[i];
    default:
      return static_cast<const std::uint64_t*>(ids.ids)[i];
  }
}

template <class Word>
struct TakeRow {
  RowIds ids;
  const Word* table;
  std::size_t words;
  Word* out;

  __device__ void operator()(std::size_t i) const {
    const std::uint64_t id = id_of(ids, i), row = id - ids.first;
    const bool here = id < ids.limit && row < ids.rows;
    const Word other = id < ids.limit ? Word{0} : static_cast<Word>(~Word{0});  // all bits: a NaN in each float type
    for_each_column(words, [&](std::size_t k) { out[i * words + k] = here ? table[row * words + k] : other; });
  }
};

/// Returns the row that an id selects; the number of rows if this rank holds no such row.
[[nodiscard]] __device__ inline std::uint64_t row_of(const RowIds& ids, std::size_t i) {
  const std::uint64_t id = id_of(ids, i), row = id - ids.first;
  return id < ids.limit && row < ids.rows ? row : ids.rows;
}

/// A pass of the sort of ids by their rows: by one digit of 5 bits, with a lane for each value that it can have. Each
/// warp has a part of the ids. Ids with equal digits keep their order.
struct DigitPass {
  RowIds ids;
  const std::uint32_t* order;  ///< of the pass before; null for the first one
  unsigned shift;              ///< bits below the digit
  unsigned warps;
  std::uint32_t* counts;  ///< how many ids of each warp have each digit

  /// Calls f(id's number, digit, lanes with an equal digit, lanes whose digit is this lane's number) with the ids of a
  /// warp, 32 at a time. Lanes without an id have no equal digit.
  template <class F>
  __device__ void for_each_id(std::size_t warp, F&& f) const {
    const std::size_t end = ids.count * (warp + 1) / warps;
    for (std::size_t begin = ids.count * warp / warps; begin < end; begin += 32) {
      const std::size_t i = begin + lane();
      const unsigned present = __ballot_sync(0xffffffffU, i < end);
      const auto number = i >= end ? 0 : order == nullptr ? static_cast<std::uint32_t>(i) : order[i];
      const auto digit = static_cast<unsigned>(row_of(ids, number) >> shift) & 31;
      unsigned equal = i < end ? present : 0, of_lane = present;
      unrolled<5>([&](int bit) {
        const unsigned set = __ballot_sync(0xffffffffU, digit >> bit & 1);
        equal &= (digit >> bit & 1) != 0 ? set : ~set;
        of_lane &= (lane() >> bit & 1) != 0 ? set : ~set;
      });
      f(number, digit, equal, of_lane);
    }
  }
};
struct CountDigits {
  DigitPass pass;

  __device__ void operator()(std::size_t warp) const {
    unsigned count = 0;
    pass.for_each_id(warp, [&](std::uint32_t, unsigned, unsigned, unsigned of_lane) { count += __popc(of_lane); });
    pass.counts[warp * 32 + lane()] = count;
  }
};
struct PlaceDigits {
  DigitPass pass;
  std::uint32_t* out;

  __device__ void operator()(std::size_t warp) const {
    unsigned all = 0, before = 0;  // ids with this lane's digit, and those of them in earlier warps
    for (std::size_t w = 0; w < pass.warps; ++w) {
      const unsigned count = pass.counts[w * 32 + lane()];
      all += count;
      before += w < warp ? count : 0;
    }
    unsigned place = before - all;
    for (unsigned distance = 1; distance < 32; distance *= 2) {
      const unsigned lower = __shfl_up_sync(0xffffffffU, all, distance);
      all += lane() >= distance ? lower : 0;
    }
    place += all;
    pass.for_each_id(warp, [&](std::uint32_t number, unsigned digit, unsigned equal, unsigned of_lane) {
      const unsigned first = __shfl_sync(0xffffffffU, place, static_cast<int>(digit));
      if (equal != 0) out[first + __popc(equal & ((1U << lane()) - 1))] = number;
      place += __popc(of_lane);
    });
  }
};

/// Adds the gradients of a run of ids that select one row, in the order of the ids. A warp has 32 times `columns_each`
/// of the columns; those of later ids of the run have nothing to do.
template <class T>
struct AddRunOfIds {
  static constexpr std::size_t columns_each = 4;
  RowIds ids;
  const std::uint32_t* order;
  const T* gradient;
  std::size_t columns, tiles;
  T* out;

  __device__ void operator()(std::size_t tile) const {
    const std::size_t begin = tile / tiles, column = tile % tiles * (32 * columns_each) + lane();
    const std::uint64_t row = row_of(ids, order[begin]);
    if (row == ids.rows || (begin > 0 && row_of(ids, order[begin - 1]) == row)) return;
    T sum[columns_each] = {};
    const auto each = [&](auto&& f) {
      unrolled<static_cast<int>(columns_each)>([&](int c) {
        const std::size_t at = column + 32 * static_cast<unsigned>(c);
        if (at < columns) f(at, sum[c]);
      });
    };
    int run = 32;
    for (std::size_t i = begin + lane(); run == 32; i += 32) {
      const std::uint32_t number = i < ids.count ? order[i] : 0;
      run = __popc(__ballot_sync(0xffffffffU, i < ids.count && row_of(ids, number) == row));
      for (int k = 0; k < run; ++k) {
        const T* const from = gradient + __shfl_sync(0xffffffffU, number, k) * columns;
        each([&](std::size_t at, T& total) { total += from[at]; });
      }
    }
    each([&](std::size_t at, const T& total) { out[row * columns + at] = total; });
  }
};
/// Sorts the ids by their rows, and adds up the gradients of each row. @pre the number of ids fits in 32 bits
template <class T>
void enqueue_add_to_rows_of(CudaStreamRef stream, const RowIds& ids, const typename TensorKernels<T>::Rows& gradient,
                            std::uint32_t* order, T* out) {
  const auto warps = static_cast<unsigned>(std::min(RowIds::sorting_warps, (ids.count + 31) / 32));
  std::uint32_t *from = nullptr, *to = order, *next = order + ids.count;
  const auto bits = static_cast<unsigned>(std::bit_width(ids.rows));
  for (unsigned shift = 0; shift < bits; shift += 5) {
    const DigitPass pass{ids, from, shift, warps, order + 2 * ids.count};
    for_each_row(stream, warps, CountDigits{pass});
    for_each_row(stream, warps, PlaceDigits{pass, to});
    from = std::exchange(to, next);
    next = from;
  }
  if (from == nullptr) return;  // this rank holds no rows
  constexpr std::size_t tile = 32 * AddRunOfIds<T>::columns_each;
  const std::size_t tiles = (gradient.columns + tile - 1) / tile;
  for_each_row(stream, ids.count * tiles, AddRunOfIds<T>{ids, from, gradient.values, gradient.columns, tiles, out});
}

inline void enqueue_take_rows(CudaStreamRef stream, const RowIds& ids, const std::byte* table, std::size_t row_bytes,
                              std::byte* out) {
  const auto by = [&]<class Word>(Word) {
    for_each_row(stream, ids.count,
                 TakeRow<Word>{ids, reinterpret_cast<const Word*>(table), row_bytes / sizeof(Word),
                               reinterpret_cast<Word*>(out)});
  };
  const std::size_t bits = reinterpret_cast<std::uintptr_t>(table) | reinterpret_cast<std::uintptr_t>(out) | row_bytes;
  if (bits % 8 == 0)
    by(std::uint64_t{});
  else if (bits % 2 == 0)
    by(std::uint16_t{});
  else
    by(std::uint8_t{});
}

}  // namespace distx::inline DISTX_ABI::cuda::detail
