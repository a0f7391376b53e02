// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <bit>

#include "distx/comm/any_communicator.hpp"
#include "distx/comm/detail/in_order.hpp"
#include "distx/parallel/detail/base/training_policies.hpp"
#include "distx/parallel/detail/bucket/flat_buffer.hpp"
#include "distx/parallel/detail/memory/pool.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Averages gradients in the order of one binary tree over virtual ranks, for the policy Reproducible.
///
/// A rank's micro-batches are the leaves of one subtree. Each sum is rounded to the communication dtype once, wherever
/// in the tree the ranks part, so the bits do not depend on the number of ranks.
template <MemorySpace Space>
class GradientTree {
 public:
  using stream = typename Space::stream;
  using here = std::source_location;

  GradientTree(const TrainingPolicies& policies, int ranks)
      : virtual_ranks_(policies.virtual_ranks), leaves_(policies.leaves(ranks)), whole_(policies.stage == 0) {}

  /// Whether the training has the policy.
  [[nodiscard]] bool used() const noexcept { return virtual_ranks_ > 0; }
  /// Whether the gradients of this micro-batch are kept on this rank as partial sums.
  [[nodiscard]] bool keeps() const noexcept { return leaf_ + 1 < leaves_; }
  /// Begins the next micro-batch, or if not `adds`, the next step.
  void restart(bool adds) noexcept { leaf_ = adds ? leaf_ + 1 : 0; }

  /// Adds the gradient in `buffer.sent()` and the partial sums that it completes, as a binary counter carries, and
  /// keeps the result. The last micro-batch of a step leaves the sum of the rank's subtree in `buffer.sent()`.
  void add(const FlatBuffer<Space>& buffer, stream after) const {
    const std::size_t size = buffer.layout.size;
    const auto levels = static_cast<std::size_t>(std::countr_one(leaf_));  // that it completes
    in_blocks(buffer, size, [&](std::size_t begin, std::size_t count) {
      const auto partial = [&](std::size_t level) { return buffer.partials.subspan(level * size + begin, count); };
      const auto leaf = buffer.sent().subspan(begin, count), sum = keeps() ? partial(levels) : leaf;
      copy(after, bytes_of(sum), bytes_of(leaf));
      for (std::size_t level = 0; level < levels; ++level) add_to(after, sum, partial(level));
    });
  }
  /// Returns the exchange of the ranks' sums, of which each receives those of its shard.
  /// @param memory  empty on the only rank, which exchanges nothing
  /// @param order  compared across ranks
  [[nodiscard]] static AllToAll<AnyElement, Space> exchange(const FlatBuffer<Space>& buffer,
                                                            const PoolAllocation<Space>& memory, std::uint64_t order,
                                                            const here& location) {
    return {buffer.sent(), received(buffer, memory), buffer.layout.partition.counts(), buffer.exchange_counts, location,
            order};
  }
  /// Adds the exchanged sums, and writes the average to `buffer.received(false)`. At stage 0 collective over `comm`.
  void finish(const FlatBuffer<Space>& buffer, const PoolAllocation<Space>& memory, AnyCommunicator<Space>& comm,
              stream after, const here& location) const {
    const auto& partition = buffer.layout.partition;
    const int rank = comm.rank();
    const auto whole = buffer.received(false);
    const auto mine = whole_ ? whole.subspan(partition.begin(rank), partition.size(rank)) : whole;
    const auto sums = comm.size() == 1 ? buffer.sent() : received(buffer, memory);
    in_blocks(buffer, mine.size(), [&](std::size_t begin, std::size_t count) {
      const auto part = [&](int of) { return sums.subspan(static_cast<std::size_t>(of) * mine.size() + begin, count); };
      for (int step = 1; step < comm.size(); step *= 2)
        for (int left = 0; left < comm.size(); left += 2 * step) add_to(after, part(left), part(left + step));
      const auto mean = mine.subspan(begin, count);
      copy(after, bytes_of(mean), bytes_of(part(0)));
      with_type(mean, [&](auto values) { scale(after, values, 1.0 / virtual_ranks_); });
    });
    if (whole_ && comm.size() > 1)
      make_in_order(comm, AllGather<AnyElement, Space>{mine, whole, partition.counts(), location}, after);
  }

 private:
  [[nodiscard]] static Span<AnyElement, Space> received(const FlatBuffer<Space>& buffer,
                                                        const PoolAllocation<Space>& memory) noexcept {
    return {memory.span().data(), buffer.exchange_counts.size() * buffer.exchange_counts.front(),
            buffer.communication_type, size_of(buffer.communication_type)};
  }
  /// Calls f(begin, count) for blocks of `size` elements that stay in a cache from one pass over them to the next.
  template <class F>
  static void in_blocks(const FlatBuffer<Space>& buffer, std::size_t size, F&& f) {
    const std::size_t block = 16384 / size_of(buffer.communication_type);
    for (std::size_t begin = 0; begin < size; begin += block) f(begin, std::min(block, size - begin));
  }

  int virtual_ranks_;
  std::size_t leaves_;
  bool whole_;
  std::size_t leaf_ = 0;
};

}  // namespace distx::inline DISTX_ABI::detail
