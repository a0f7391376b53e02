// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/optim/matrix_optimizer.hpp"
#include "distx/parallel/detail/memory/held_memory.hpp"

namespace distx::detail {

/// A piece of a parameter, as its optimizer knows it.
struct PieceOf {
  std::size_t parameter = 0;  ///< its place in the bucket
  std::size_t size = 0;
  std::size_t extent = 0;  ///< with what is padded behind it
  MatrixShape matrix{};    ///< of no size, unless it is a matrix and whole
};

/// One bucket's shard, as its optimizer knows it.
struct ShardOf {
  ElementType type{};
  bool master = false;         ///< keeps master weights in float
  std::size_t parameters = 0;  ///< of the bucket: the same on all ranks
  std::vector<PieceOf> pieces{};
};

/// Memory for intermediate results, which all shards of a training use one after another.
template <MemorySpace Space>
class Workspace {
 public:
  /// Before `allocate`: somebody will want so many bytes at a time.
  void reserve(std::size_t bytes) noexcept { bytes_ = std::max(bytes_, bytes); }
  void allocate(const std::shared_ptr<MemoryAccount>& account) {
    if (bytes_ > 0) memory_ = hold_local<Space>(account, MemoryKind::in_flight, bytes_);
  }
  /// `count` of the elements from `begin` on.
  template <class A>
  [[nodiscard]] Span<A, Space> of(std::size_t begin, std::size_t count) const noexcept {
    if (count == 0) return {};
    return {reinterpret_cast<A*>(memory_->span().data()) + begin, count};
  }

 private:
  std::size_t bytes_ = 0;
  Held<Space> memory_;
};

/// What an optimizer keeps of each piece, in A: as many arrays as it wants, and master weights before them.
template <MemorySpace Space, class A>
class ShardState {
 public:
  /// `states(piece)`: how many arrays the optimizer keeps of it.
  template <class States>
  ShardState(const ShardOf& shard, States&& states, const std::shared_ptr<MemoryAccount>& account)
      : pieces_(shard.pieces), masters_(shard.master ? 1 : 0) {
    std::size_t elements = 0;
    for (const auto& piece : pieces_) {
      begins_.push_back(elements);
      elements += piece.extent * (masters_ + states(piece));
    }
    memory_ = hold_local<Space>(account, MemoryKind::optimizer, elements * sizeof(A));
  }

  [[nodiscard]] const PieceOf& operator[](std::size_t piece) const noexcept { return pieces_[piece]; }
  [[nodiscard]] bool has_master() const noexcept { return masters_ > 0; }
  /// @pre has_master()
  [[nodiscard]] Span<A, Space> master(std::size_t piece) const noexcept { return array(piece, 0); }
  template <std::size_t N>
  [[nodiscard]] std::array<Span<A, Space>, N> states(std::size_t piece) const noexcept {
    std::array<Span<A, Space>, N> all;
    for (std::size_t s = 0; s < N; ++s) all[s] = array(piece, masters_ + s);
    return all;
  }

 private:
  [[nodiscard]] Span<A, Space> array(std::size_t piece, std::size_t k) const noexcept {
    const auto& of = pieces_[piece];
    return {reinterpret_cast<A*>(memory_->span().data()) + begins_[piece] + k * of.extent, of.size};
  }

  std::vector<PieceOf> pieces_;
  std::vector<std::size_t> begins_;
  std::size_t masters_;
  Held<Space> memory_;
};

}  // namespace distx::detail
