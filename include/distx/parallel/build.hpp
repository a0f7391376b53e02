// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/movement.hpp"
#include "distx/parallel/detail/bucket/lay_out_buckets.hpp"
#include "distx/parallel/detail/engine/units.hpp"
#include "distx/parallel/detail/memory/allocate.hpp"

namespace distx::detail {

/// Gives the owned parameters their first values, or those that an earlier training has left them: of rank `root`.
///
/// At stage 3 one bucket after another is whole, in the pool, and no more. Collective.
template <MemorySpace Space>
void set_values(Buckets<Space>& buckets, std::vector<Entry<Space>>& entries, Wires<Space>& wires, Pool<Space>* pool,
                int root, const std::source_location& location) {
  const typename Space::stream stream{};
  for (auto& bucket : buckets) {
    if (!bucket.owned) continue;
    auto& run = bucket.runs.front();
    Loan<Space> whole;
    Span<AnyElement, Space> values = run.value;
    if (run.value_apart) {
      const auto memory = pool->take(run.layout.bytes(), stream);
      whole = memory.empty() ? Loan<Space>(*pool, run.layout.bytes()) : Loan<Space>(*pool, memory);
      values = run.layout.over(whole.span());
      fill(stream, whole.span(), std::byte{0});
      stream.synchronize();  // what initializes may write on a stream of its own
    }
    for (const auto& place : run.layout.places) {
      auto& state = *entries[place.entry].owned;
      const auto value = values.subspan(place.begin, place.size);
      if (state.value.empty())
        state.initialize(value);
      else
        copy(stream, bytes_of(value), bytes_of(state.value));
      state.value = run.value_apart ? Span<AnyElement, Space>{} : value;
      state.value_memory = run.value_apart ? nullptr : bucket.memory.front();
      state.sharded = run.value_apart;
      if (!run.gradient.empty()) state.gradient = run.gradient.subspan(place.begin, place.size);
    }
    synchronize_all<Space>();  // it may have written on any stream
    if (wires.all.size() > 1) make_behind(wires.all, Broadcast<AnyElement, Space>{values, root, location}, stream);
    if (run.value_apart) copy(stream, bytes_of(run.own_value), bytes_of(run.own(values)));
  }
}

/// Tells the optimizer's shards which values they begin with.
template <MemorySpace Space>
void adopt_values(Buckets<Space>& buckets, const std::vector<Entry<Space>>& entries) {
  for (auto& bucket : buckets) {
    if (!bucket.trained) continue;
    std::size_t number = 0;
    for (const auto& run : bucket.runs)
      for (const auto& piece : run.updated) bucket.update->adopt({}, number++, run.segment(piece, entries).weight);
  }
}

}  // namespace distx::detail
