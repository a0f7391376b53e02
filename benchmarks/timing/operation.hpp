// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <cstddef>
#include <string_view>

// The timed operations, the elements that every rank sends and receives, and the definitions of bandwidth.
namespace timing {

enum class Operation {
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  gather,
  scatter,
  all_to_all,
  send_recv,
};

inline constexpr std::array operations{Operation::all_reduce, Operation::reduce,         Operation::broadcast,
                                       Operation::all_gather, Operation::reduce_scatter, Operation::gather,
                                       Operation::scatter,    Operation::all_to_all,     Operation::send_recv};

constexpr std::string_view name_of(Operation operation) {
  constexpr std::string_view names[] = {"all_reduce", "reduce",  "broadcast",  "all_gather", "reduce_scatter",
                                        "gather",     "scatter", "all_to_all", "send_recv"};
  return names[static_cast<std::size_t>(operation)];
}

inline constexpr int root = 0;

/// Whether the whole is made of one block for each rank.
constexpr bool has_blocks(Operation operation) {
  switch (operation) {
    case Operation::all_gather:
    case Operation::reduce_scatter:
    case Operation::gather:
    case Operation::scatter:
    case Operation::all_to_all:
      return true;
    default:
      return false;
  }
}

constexpr bool has_in_place(Operation operation) { return operation != Operation::send_recv; }

/// One kind of call: `whole` elements in a whole buffer, `whole / ranks` in a block.
struct Case {
  Operation operation = Operation::all_reduce;
  bool in_place = false;
  std::size_t whole = 0;
  int rank = 0;
  int ranks = 1;

  [[nodiscard]] std::size_t block() const { return whole / static_cast<std::size_t>(ranks); }
  [[nodiscard]] std::size_t bytes() const { return whole * sizeof(float); }
  [[nodiscard]] int to() const { return (rank + 1) % ranks; }  ///< of `send_recv`: a ring
  [[nodiscard]] int from() const { return (rank + ranks - 1) % ranks; }

  /// Elements that this rank passes, and that it gets.
  [[nodiscard]] std::size_t sends() const {
    switch (operation) {
      case Operation::all_gather:
      case Operation::gather:
        return block();
      case Operation::broadcast:
      case Operation::scatter:
        return rank == root ? whole : 0;
      default:
        return whole;
    }
  }
  [[nodiscard]] std::size_t receives() const {
    switch (operation) {
      case Operation::reduce:
      case Operation::gather:
        return rank == root ? whole : 0;
      case Operation::reduce_scatter:
      case Operation::scatter:
        return block();
      default:
        return whole;
    }
  }
};

/// The largest number of elements within `bytes` that the ranks can share.
constexpr std::size_t whole_within(Operation operation, std::size_t bytes, int ranks) {
  const std::size_t elements = bytes / sizeof(float);
  return has_blocks(operation) ? elements - elements % static_cast<std::size_t>(ranks) : elements;
}

/// Bus bandwidth over algorithm bandwidth: the share of the bytes that must leave or reach the busiest rank.
/// Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md, and the factor in each of its programs.
constexpr double bus_factor(Operation operation, int ranks) {
  const double n = ranks;
  switch (operation) {
    case Operation::all_reduce:
      return 2 * (n - 1) / n;
    case Operation::all_gather:
    case Operation::reduce_scatter:
    case Operation::gather:
    case Operation::scatter:
    case Operation::all_to_all:
      return (n - 1) / n;
    default:
      return 1;
  }
}

}  // namespace timing
