// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <bit>
#include <cstdint>

#include "distx/cuda/detail/copy_box.hpp"
#include "distx/cuda/kernels/launch.cuh"

// Copies of parts of tensors, whose runs may be as short as one element: each thread copies several words of runs at a
// time. Words are as wide as the alignment of all runs allows.
namespace distx::inline DISTX_ABI::cuda::detail {

/// Divides by a number that the host knows: dividends of 32 bits by a product.
template <class Index>
class Divisor {
 public:
  Divisor() = default;
  /// @pre value > 0; with 32 bits, dividends are less than 2^31
  explicit Divisor(Index value) : value_(value) {
    if constexpr (sizeof(Index) == 4) {
      shift_ = static_cast<unsigned>(std::bit_width(value - 1));
      factor_ = static_cast<Index>((((std::uint64_t{1} << shift_) - value) << 32) / value + 1);
    }
  }
  [[nodiscard]] __device__ Index quotient(Index dividend) const {
    if constexpr (sizeof(Index) == 4)
      return (static_cast<Index>((std::uint64_t{dividend} * factor_) >> 32) + dividend) >> shift_;
    else
      return dividend / value_;
  }
  [[nodiscard]] __device__ Index value() const { return value_; }

 private:
  Index value_ = 1;
  Index factor_ = 0;
  unsigned shift_ = 0;
};

/// The words of runs, numbered in the order of the runs.
template <class Word, class Index>
struct RunWords {
  distx::detail::BoxRuns runs;
  Divisor<Index> words;  ///< of each run
  Divisor<Index> count[distx::detail::max_dimensions];
  Index all = 0;

  explicit RunWords(const distx::detail::BoxRuns& of) : runs(of), words(static_cast<Index>(of.bytes / sizeof(Word))) {
    std::size_t product = of.bytes / sizeof(Word);
    for (std::size_t d = 0; d < of.dimensions; ++d) {
      count[d] = Divisor<Index>(static_cast<Index>(of.count[d]));
      product *= of.count[d];
    }
    all = static_cast<Index>(product);
  }
  /// Sets the offsets of a word in both memories.
  __device__ void find(Index word, std::size_t& to, std::size_t& from) const {
    Index run = words.quotient(word);
    to = from = (word - run * words.value()) * sizeof(Word);
    for (std::size_t d = runs.dimensions; d-- > 0;) {
      const Index before = count[d].quotient(run), index = run - before * count[d].value();
      to += index * runs.to_step[d];
      from += index * runs.from_step[d];
      run = before;
    }
  }
};

/// Words that each thread loads before it stores one.
inline constexpr unsigned words_in_flight = 4;

template <class Word, class Index>
__global__ void copy_words(std::byte* to, const std::byte* from, const __grid_constant__ RunWords<Word, Index> runs) {
  const Index threads = static_cast<Index>(gridDim.x) * blockDim.x;
  for (Index first = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x; first < runs.all;
       first += threads * words_in_flight) {
    Word word[words_in_flight];
    std::size_t to_at[words_in_flight], from_at;
    for (unsigned k = 0; k < words_in_flight; ++k) {
      if (first + k * threads >= runs.all) continue;
      runs.find(first + k * threads, to_at[k], from_at);
      word[k] = *reinterpret_cast<const Word*>(from + from_at);
    }
    for (unsigned k = 0; k < words_in_flight; ++k)
      if (first + k * threads < runs.all) *reinterpret_cast<Word*>(to + to_at[k]) = word[k];
  }
}

template <class Word>
void enqueue_copy_words(CudaStreamRef stream, std::byte* to, const std::byte* from,
                        const distx::detail::BoxRuns& runs) {
  std::size_t all = runs.bytes / sizeof(Word);
  for (std::size_t d = 0; d < runs.dimensions; ++d) all *= runs.count[d];
  // Divisions of 32 bits are several times faster; the loop may step past the end by a few grids.
  const std::size_t threads = (all + words_in_flight - 1) / words_in_flight;
  const unsigned blocks = blocks_for((threads + block_threads - 1) / block_threads, 8);
  if (all < std::size_t{1} << 30)
    enqueue<&copy_words<Word, std::uint32_t>>(stream, blocks, block_threads, to, from,
                                              RunWords<Word, std::uint32_t>(runs));
  else
    enqueue<&copy_words<Word, std::uint64_t>>(stream, blocks, block_threads, to, from,
                                              RunWords<Word, std::uint64_t>(runs));
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

}  // namespace distx::inline DISTX_ABI::cuda::detail
