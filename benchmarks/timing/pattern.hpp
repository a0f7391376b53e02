// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "timing/operation.hpp"

// The values written before every call, and the values expected after it. They are whole numbers below 4096, so that
// sums are exact in any order; the value of an element depends on its index, its rank and the turn.
namespace timing {

/// Element `index` of what rank `rank` passes in turn `turn`.
constexpr float element(std::uint32_t index, int rank, std::uint32_t turn) {
  const std::uint32_t mixed = index ^ (index >> 9) ^ (index >> 18);
  return static_cast<float>(
      static_cast<std::int32_t>((mixed + static_cast<std::uint32_t>(rank) * 977u + turn * 131u) & 4095u));
}

/// Calls `f(begin, end)` for pieces of [0, count), of a length that the compiler knows but for the last.
template <class F>
void in_pieces(std::size_t count, F&& f) {
  constexpr std::size_t piece = 1024;
  std::size_t begin = 0;
  for (; begin + piece <= count; begin += piece) f(begin, std::integral_constant<std::size_t, piece>{});
  if (begin < count) f(begin, count - begin);
}

/// Writes elements [first, first + count) of a rank's message.
inline void write(float* to, std::size_t first, std::size_t count, int rank, std::uint32_t turn) {
  in_pieces(count, [&](std::size_t begin, auto length) {
    const std::size_t n = length;
    for (std::size_t i = 0; i < n; ++i)
      to[begin + i] = element(static_cast<std::uint32_t>(first + begin + i), rank, turn);
  });
}

/// Fills with what equals nothing, so that an element that a call leaves out is an error.
inline void spoil(float* to, std::size_t count) {
  if (count != 0) std::memset(static_cast<void*>(to), 0xff, count * sizeof(float));
}

/// Counts where `got[i]` is not the sum over [first_rank, last_rank) of element `first + i`.
inline std::size_t count_errors(const float* got, std::size_t first, std::size_t count, int first_rank, int last_rank,
                                std::uint32_t turn) {
  std::size_t errors = 0;
  in_pieces(count, [&](std::size_t begin, auto length) {
    const std::size_t n = length;
    float sums[1024] = {};
    for (int rank = first_rank; rank < last_rank; ++rank)
      for (std::size_t i = 0; i < n; ++i) sums[i] += element(static_cast<std::uint32_t>(first + begin + i), rank, turn);
    std::uint32_t wrong = 0;
    for (std::size_t i = 0; i < n; ++i) wrong += got[begin + i] == sums[i] ? 0u : 1u;
    errors += wrong;
  });
  return errors;
}

/// Where a rank's part of one call lies. In place, `send` and `receive` overlap as the operation has it.
struct Buffers {
  float* send = nullptr;
  float* receive = nullptr;
};

/// In place, both are in `first`: the block is the rank's own block of the other. A broadcast is always in place.
inline Buffers place(const Case& c, float* first, float* second) {
  if (!c.in_place && c.operation != Operation::broadcast) return {first, second};
  const std::size_t own = static_cast<std::size_t>(c.rank) * c.block();
  switch (c.operation) {
    case Operation::all_gather:
    case Operation::gather:
      return {first + own, first};
    case Operation::reduce_scatter:
    case Operation::scatter:
      return {first, first + own};
    default:
      return {first, first};
  }
}

/// Prepares the buffers for turn `turn`: overwrites the receive buffer and writes the data to send.
inline void prepare(const Case& c, const Buffers& b, std::uint32_t turn) {
  // Where they overlap, all that will be passed is written last.
  if (b.receive != b.send || c.sends() == 0) spoil(b.receive, c.receives());
  // A block is numbered as the part of the whole that it is.
  const bool part = c.operation == Operation::all_gather || c.operation == Operation::gather;
  write(b.send, part ? static_cast<std::size_t>(c.rank) * c.block() : 0, c.sends(), c.rank, turn);
}

/// Elements that are not what the operation's meaning says, on this rank.
inline std::size_t check(const Case& c, const float* receive, std::uint32_t turn) {
  const std::size_t own = static_cast<std::size_t>(c.rank) * c.block();
  switch (c.operation) {
    case Operation::all_reduce:
    case Operation::reduce:
      return count_errors(receive, 0, c.receives(), 0, c.ranks, turn);
    case Operation::reduce_scatter:
      return count_errors(receive, own, c.receives(), 0, c.ranks, turn);
    case Operation::broadcast:
      return count_errors(receive, 0, c.receives(), root, root + 1, turn);
    case Operation::scatter:
      return count_errors(receive, own, c.receives(), root, root + 1, turn);
    case Operation::send_recv:
      return count_errors(receive, 0, c.receives(), c.from(), c.from() + 1, turn);
    case Operation::all_gather:
    case Operation::gather:
    case Operation::all_to_all: {
      if (c.receives() == 0) return 0;
      std::size_t errors = 0;
      for (int r = 0; r < c.ranks; ++r) {
        const std::size_t block = static_cast<std::size_t>(r) * c.block();
        errors += count_errors(receive + block, c.operation == Operation::all_to_all ? own : block, c.block(), r, r + 1,
                               turn);
      }
      return errors;
    }
  }
  return 0;
}

}  // namespace timing
