// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdint>

#include "distx/cuda/detail/copy_box.hpp"
#include "distx/cuda/kernels/launch.cuh"

// Copies of parts of tensors, whose runs may be as short as one element: one thread for each word of a run. Words are
// as wide as the alignment of all runs allows.
namespace distx::cuda::detail {

template <class Word, class Index>
__global__ void copy_words(std::byte* to, const std::byte* from, const distx::detail::BoxRuns runs, Index words,
                           Index all) {
  for (Index i = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x; i < all;
       i += static_cast<Index>(gridDim.x) * blockDim.x) {
    Index run = i / words;
    std::size_t to_at = (i - run * words) * sizeof(Word), from_at = to_at;
    for (std::size_t d = runs.dimensions; d-- > 0;) {
      const auto count = static_cast<Index>(runs.count[d]);
      const Index before = run / count, index = run - before * count;
      to_at += index * runs.to_step[d];
      from_at += index * runs.from_step[d];
      run = before;
    }
    *reinterpret_cast<Word*>(to + to_at) = *reinterpret_cast<const Word*>(from + from_at);
  }
}

template <class Word>
void enqueue_copy_words(CudaStreamRef stream, std::byte* to, const std::byte* from,
                        const distx::detail::BoxRuns& runs) {
  const std::size_t words = runs.bytes / sizeof(Word);
  std::size_t all = words;
  for (std::size_t d = 0; d < runs.dimensions; ++d) all *= runs.count[d];
  // Divisions of 32 bits are several times faster; the loop may step past the end by a whole grid.
  const unsigned blocks = blocks_for((all + block_threads - 1) / block_threads, 8);
  if (all < std::size_t{1} << 31)
    enqueue<&copy_words<Word, std::uint32_t>>(stream, blocks, block_threads, to, from, runs,
                                              static_cast<std::uint32_t>(words), static_cast<std::uint32_t>(all));
  else
    enqueue<&copy_words<Word, std::uint64_t>>(stream, blocks, block_threads, to, from, runs, std::uint64_t{words},
                                              std::uint64_t{all});
}

inline void enqueue_copy_runs(CudaStreamRef stream, std::byte* to, const std::byte* from,
                              const distx::detail::BoxRuns& runs) {
  to += runs.to_begin;
  from += runs.from_begin;
  std::size_t all_bits = reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from) | runs.bytes;
  for (std::size_t d = 0; d < runs.dimensions; ++d) all_bits |= runs.to_step[d] | runs.from_step[d];
  if (all_bits % 16 == 0)
    enqueue_copy_words<uint4>(stream, to, from, runs);
  else if (all_bits % 8 == 0)
    enqueue_copy_words<std::uint64_t>(stream, to, from, runs);
  else if (all_bits % 4 == 0)
    enqueue_copy_words<std::uint32_t>(stream, to, from, runs);
  else if (all_bits % 2 == 0)
    enqueue_copy_words<std::uint16_t>(stream, to, from, runs);
  else
    enqueue_copy_words<std::uint8_t>(stream, to, from, runs);
}

[[maybe_unused]] inline const bool has_copy_runs = (copy_runs_kernel = enqueue_copy_runs, true);

}  // namespace distx::cuda::detail
