// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/movement.hpp"
#include "distx/parallel/detail/base/training_communicators.hpp"
#include "distx/parallel/detail/bucket/bucket.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Gives owned parameters the first values of rank `root`, or those that an earlier training has left there.
///
/// At stage 3 one bucket at a time is whole, in memory of the pool. Collective over all ranks.
template <MemorySpace Space>
void set_initial_values(Buckets<Space>& buckets, const std::vector<ParameterEntry<Space>>& entries,
                        TrainingCommunicators<Space>& comms, MemoryPool<Space>& pool, int root,
                        const std::source_location& location) {
  const typename Space::stream stream{};
  for (auto& bucket : buckets) {
    if (!bucket.owned) continue;
    auto& buffer = bucket.buffers.front();
    const bool sharded = buffer.separate_value_shard;
    const bool in_place = comms.shards() == 1 && !buffer.mapped_value.empty();  // the only shard is whole
    PoolAllocation<Space> whole;
    Span<AnyElement, Space> values = in_place ? buffer.mapped_value : buffer.value;
    if (sharded && !in_place) {
      whole = pool.take_or_allocate(buffer.layout.bytes(), stream);
      values = buffer.layout.over(whole.span());
      fill(stream, whole.span(), std::byte{0});
      stream.synchronize();  // an initializer may write on any stream
    }
    for (const auto& range : buffer.layout.ranges) {
      auto& state = *entries[range.entry].owned;
      const auto value = values.subspan(range.begin, range.size);
      if (state.value.empty())
        state.initialize(value);
      else
        copy(stream, bytes_of(value), bytes_of(state.value));
      state.place(sharded ? Span<AnyElement, Space>{} : value);
      state.value_memory = sharded ? nullptr : bucket.memory.front();
      state.sharded = sharded;
      if (!buffer.gradient.empty()) state.gradient = buffer.gradient.subspan(range.begin, range.size);
    }
    synchronize_all<Space>();
    if (comms.all().size() > 1) make_behind(comms.all(), Broadcast<AnyElement, Space>{values, root, location}, stream);
    if (sharded && !in_place) copy(stream, bytes_of(buffer.value_shard), bytes_of(buffer.own(values)));
  }
}

/// Passes the optimizers' shards their first values.
template <MemorySpace Space>
void adopt_values(Buckets<Space>& buckets, const std::vector<ParameterEntry<Space>>& entries) {
  for (auto& bucket : buckets) {
    if (!bucket.trained) continue;
    std::size_t number = 0;
    for (const auto& buffer : bucket.buffers)
      for (const auto& piece : buffer.updated)
        bucket.update->adopt({}, number++, buffer.segment(piece, entries).weight);
  }
}

}  // namespace distx::inline DISTX_ABI::detail
