// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstring>
#include <vector>

#include <distx/distx.hpp>

#include "timing/subject.hpp"

// Bounds that no collective can beat, on private memory: one rank that copies, and all ranks that concurrently do their
// share of a collective's reads and writes, without synchronization.
namespace timing {

/// Rank 0 alone copies the same number of bytes; the others wait.
class MemcpySubject final : public Subject {
 public:
  explicit MemcpySubject(Memory memory) : Subject("memcpy", std::move(memory)) {}

  [[nodiscard]] Buffers at(const Case&, std::size_t offset) const override {
    return {memory().first + offset, memory().second + offset};
  }
  void prepare(const Case& c, const Buffers& b, std::uint32_t turn) override {
    if (c.rank != 0) return;
    write(b.send, 0, c.whole, 0, turn);
    spoil(b.receive, c.whole);
  }
  void call(const Case& c, const Buffers& b) override {
    if (c.rank == 0) std::memcpy(b.receive, b.send, c.bytes());
  }
  [[nodiscard]] std::size_t errors(const Case& c, const Buffers& b, std::uint32_t turn) const override {
    return c.rank == 0 ? count_errors(b.receive, 0, c.whole, 0, 1, turn) : 0;
  }
};

/// Every rank reads and writes what its share of the collective comes to if any rank can read any memory.
///
/// The reductions run distx's own kernel over N pieces of private memory, each an N-th of the whole: all-reduce stores
/// the sum into N pieces, reduce and reduce-scatter into one; in place these are pieces that were read. What only moves
/// is a memcpy of what a rank gets; of broadcast, which N ranks share, (N-1)/N of the whole; of gather and scatter one
/// block.
class LimitSubject final : public Subject {
 public:
  explicit LimitSubject(Memory memory)
      : Subject("limit", std::move(memory)), sum_(distx::calls::AnyOp::make<float>(distx::sum)) {}

  [[nodiscard]] bool can(const Case& c) const override { return c.block() != 0; }
  [[nodiscard]] Buffers at(const Case& c, std::size_t offset) const override {
    const bool same = c.in_place && stores(c) != 0;
    return {memory().first + offset, (same ? memory().first : memory().second) + offset};
  }
  void prepare(const Case& c, const Buffers& b, std::uint32_t turn) override {
    if (b.receive != b.send) spoil(b.receive, c.whole);
    write(b.send, 0, c.whole, c.rank, turn);
  }
  void call(const Case& c, const Buffers& b) override {
    if (stores(c) == 0) {
      std::memcpy(b.receive, b.send, moves(c) * sizeof(float));
      return;
    }
    sources_.clear();
    targets_.clear();
    for (std::size_t piece = 0; piece < static_cast<std::size_t>(c.ranks); ++piece) {
      sources_.push_back(b.send + piece * c.block());
      if (piece < stores(c)) targets_.push_back(b.receive + piece * c.block());
    }
    sum_.reduce(targets_.data(), targets_.size(), sources_.data(), sources_.size(), c.block(), c.ranks);
  }
  [[nodiscard]] std::size_t errors(const Case& c, const Buffers& b, std::uint32_t turn) const override {
    if (stores(c) == 0) return count_errors(b.receive, 0, moves(c), c.rank, c.rank + 1, turn);
    std::size_t errors = 0;
    for (std::size_t i = 0; i < c.block(); ++i) {
      float sum = 0;
      for (std::size_t piece = 0; piece < static_cast<std::size_t>(c.ranks); ++piece)
        sum += element(static_cast<std::uint32_t>(piece * c.block() + i), c.rank, turn);
      for (std::size_t piece = 0; piece < stores(c); ++piece) errors += b.receive[piece * c.block() + i] != sum;
    }
    return errors;
  }

 private:
  /// Pieces into which a reduction stores; none where nothing is reduced.
  static std::size_t stores(const Case& c) {
    switch (c.operation) {
      case Operation::all_reduce:
        return static_cast<std::size_t>(c.ranks);
      case Operation::reduce:
      case Operation::reduce_scatter:
        return 1;
      default:
        return 0;
    }
  }
  /// Elements that a rank copies.
  static std::size_t moves(const Case& c) {
    switch (c.operation) {
      case Operation::gather:
      case Operation::scatter:  // the root and another rank copy what moves between them
        return c.block() - c.block() / static_cast<std::size_t>(c.ranks);
      case Operation::broadcast:
        return c.whole - c.block();
      case Operation::all_gather:
      case Operation::all_to_all:
        return c.in_place ? c.whole - c.block() : c.whole;
      default:
        return c.whole;
    }
  }

  distx::calls::AnyOp sum_;
  std::vector<const void*> sources_;
  std::vector<void*> targets_;
};

}  // namespace timing
