// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <functional>

#include "distx/memory/detail/lines.hpp"
#include "distx/optim/two_pass_optimizer.hpp"
#include "distx/parallel/detail/memory/tracked_memory.hpp"

namespace distx::inline DISTX_ABI::detail {

/// A fragment of a parameter, as its optimizer sees it.
struct FragmentDescription {
  std::size_t parameter = 0;  ///< its index in the bucket
  std::size_t size = 0;
  std::size_t extent = 0;  ///< with the padding after it
  MatrixShape matrix{};    ///< empty unless it is a whole matrix
};

/// One bucket's shard, as its optimizer sees it.
struct ShardDescription {
  ElementType type{};
  bool master = false;         ///< has master weights in float
  std::size_t parameters = 0;  ///< of the bucket: the same on all ranks
  std::vector<FragmentDescription> fragments{};
  bool together = false;  ///< whether it may be updated at the same time as the training's other shards
};

/// Allocates zeros of some bytes for a shard's states and master weights.
template <MemorySpace Space>
using StateAllocator = std::function<TrackedMemory<Space>(std::size_t)>;

/// Memory for intermediate results, used by the shards of a training one after another.
template <MemorySpace Space>
class OptimizerWorkspace {
 public:
  /// Requests `bytes` for one use. @pre `allocate` has not been called
  /// @param apart  whether no other use has the same bytes
  /// @return where they begin
  std::size_t reserve(std::size_t bytes, bool apart = false) noexcept {
    const std::size_t begin = apart ? bytes_ : 0;
    bytes_ = std::max(bytes_, begin + bytes);
    return begin;
  }
  void allocate(const std::shared_ptr<MemoryAccount>& account) {
    if (bytes_ > 0) memory_ = allocate_tracked_local<Space>(account, observe::MemoryKind::in_flight, bytes_);
  }
  /// Returns `count` elements from `begin` on.
  template <class A>
  [[nodiscard]] Span<A, Space> of(std::size_t begin, std::size_t count) const noexcept {
    if (count == 0) return {};
    return {reinterpret_cast<A*>(memory_->span().data()) + begin, count};
  }

 private:
  std::size_t bytes_ = 0;
  TrackedMemory<Space> memory_;
};

/// The state of an optimizer for each fragment, in A: master weights, if there are any, and then the optimizer's
/// arrays.
template <MemorySpace Space, class A>
class ShardState {
 public:
  /// @param states  states(fragment) returns the number of arrays that the optimizer keeps of it
  template <class States>
  ShardState(const ShardDescription& shard, States&& states, const StateAllocator<Space>& allocate)
      : fragments_(shard.fragments), masters_(shard.master ? 1 : 0) {
    std::size_t elements = 0;
    for (auto& fragment : fragments_) {
      begins_.push_back(elements);
      // On GPUs every array begins on a line, so that kernels move 16 bytes at once.
      if constexpr (!HostAccessible<Space>) fragment.extent = whole_lines(fragment.extent);
      elements += fragment.extent * (masters_ + states(fragment));
    }
    memory_ = allocate(elements * sizeof(A));
  }

  [[nodiscard]] const FragmentDescription& operator[](std::size_t fragment) const noexcept {
    return fragments_[fragment];
  }
  [[nodiscard]] bool has_master() const noexcept { return masters_ > 0; }
  /// @pre has_master()
  [[nodiscard]] Span<A, Space> master(std::size_t fragment) const noexcept { return array(fragment, 0); }
  template <std::size_t N>
  [[nodiscard]] std::array<Span<A, Space>, N> states(std::size_t fragment) const noexcept {
    std::array<Span<A, Space>, N> all;
    for (std::size_t s = 0; s < N; ++s) all[s] = array(fragment, masters_ + s);
    return all;
  }

  /// Returns the k-th array of a fragment.
  [[nodiscard]] Span<A, Space> array(std::size_t fragment, std::size_t k) const noexcept {
    const auto& of = fragments_[fragment];
    return {reinterpret_cast<A*>(memory_->span().data()) + begins_[fragment] + k * of.extent, of.size};
  }

 private:
  [[nodiscard]] static std::size_t whole_lines(std::size_t elements) noexcept {
    return round_up_to_lines(elements * sizeof(A)) / sizeof(A);
  }

  std::vector<FragmentDescription> fragments_;
  std::vector<std::size_t> begins_;
  std::size_t masters_;
  TrackedMemory<Space> memory_;
};

}  // namespace distx::inline DISTX_ABI::detail
