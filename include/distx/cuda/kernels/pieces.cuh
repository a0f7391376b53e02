// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdint>

#include "distx/cuda/detail/copy.hpp"
#include "distx/cuda/kernels/elementwise.cuh"

// Many copies by one kernel: CUDA's own copies take as long to start as a kernel each.
namespace distx::inline DISTX_ABI::cuda::detail {

/// The copies of one launch, and the first tile of each.
struct CopyTable {
  static constexpr unsigned tile_bytes = 16384;
  static constexpr unsigned capacity = 141;  // CUDA takes 4 KiB of parameters before 12.1

  distx::detail::CopyPiece pieces[capacity];
  unsigned first_tile[capacity + 1];
  unsigned count = 0;
};
static_assert(sizeof(CopyTable) <= 4000);

/// Copies bytes by words, several of which each thread loads before it stores one.
template <class Word>
__device__ void copy_tile(std::byte* to, const std::byte* from, unsigned bytes) {
  constexpr int depth = 4;
  const unsigned words = bytes / sizeof(Word);
  for (unsigned first = threadIdx.x; first < words; first += depth * blockDim.x) {
    Word word[depth];
    unrolled<depth>([&](int i) {
      const unsigned at = first + static_cast<unsigned>(i) * blockDim.x;
      if (at < words) word[i] = reinterpret_cast<const Word*>(from)[at];
    });
    unrolled<depth>([&](int i) {
      const unsigned at = first + static_cast<unsigned>(i) * blockDim.x;
      if (at < words) reinterpret_cast<Word*>(to)[at] = word[i];
    });
  }
  const unsigned rest = words * static_cast<unsigned>(sizeof(Word)) + threadIdx.x;
  if (rest < bytes) to[rest] = from[rest];
}

static __global__ void __launch_bounds__(block_threads) copy_pieces(const __grid_constant__ CopyTable table) {
  for (unsigned tile = blockIdx.x; tile < table.first_tile[table.count]; tile += gridDim.x) {
    const unsigned number = piece_of(table, tile);
    const auto& piece = table.pieces[number];
    const std::size_t begin = (tile - table.first_tile[number]) * std::size_t{CopyTable::tile_bytes};
    const std::size_t left = piece.bytes - begin;
    const unsigned bytes = left < CopyTable::tile_bytes ? static_cast<unsigned>(left) : CopyTable::tile_bytes;
    std::byte* const to = piece.to + begin;
    const std::byte* const from = piece.from + begin;
    const auto bits = reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from);
    if (bits % 16 == 0)
      copy_tile<uint4>(to, from, bytes);
    else if (bits % 4 == 0)
      copy_tile<std::uint32_t>(to, from, bytes);
    else if (bits % 2 == 0)
      copy_tile<std::uint16_t>(to, from, bytes);
    else
      copy_tile<std::uint8_t>(to, from, bytes);
  }
}

inline void enqueue_copy_pieces(CudaStreamRef stream, std::span<const distx::detail::CopyPiece> pieces) {
  CopyTable table;
  table.first_tile[0] = 0;
  const auto flush = [&] {
    const unsigned tiles = table.first_tile[table.count];
    if (tiles > 0) enqueue<&copy_pieces>(stream, blocks_for(tiles, 8), block_threads, table);
    table.count = 0;
  };
  for (const auto& piece : pieces) {
    const std::size_t tiles = (piece.bytes + CopyTable::tile_bytes - 1) / CopyTable::tile_bytes;
    if (tiles == 0) continue;
    table.pieces[table.count] = piece;
    table.first_tile[table.count + 1] = table.first_tile[table.count] + static_cast<unsigned>(tiles);
    if (++table.count == CopyTable::capacity) flush();
  }
  flush();
}

[[maybe_unused]] inline const bool has_copy_pieces = (copy_pieces_kernel = enqueue_copy_pieces, true);

}  // namespace distx::inline DISTX_ABI::cuda::detail
