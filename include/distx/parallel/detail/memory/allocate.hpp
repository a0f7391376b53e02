// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/detail/engine/reducer.hpp"
#include "distx/parallel/detail/optimizer/any_optimizer.hpp"

namespace distx::detail {

/// Memory for the parts of the values: in one piece, since every rank asks for the same, and what is dealt out whole
/// makes the parts of one bucket uneven. Collective.
template <MemorySpace Space>
void allocate_own_values(Buckets<Space>& buckets, Wires<Space>& wires, const std::shared_ptr<MemoryAccount>& account) {
  const auto bytes_of_part = [](const Bucket<Space>& bucket, int part) {
    const Layout& layout = bucket.runs.front().layout;
    return bucket.owned ? round_up_to_lines(layout.cut.size(part) * layout.element_bytes) : 0;
  };
  std::size_t most = 0;
  for (int part = 0; part < wires.parts(); ++part) {
    std::size_t bytes = 0;
    for (const auto& bucket : buckets) bytes += bytes_of_part(bucket, part);
    most = std::max(most, bytes);
  }
  if (most == 0) return;
  const auto memory = hold_shared(wires.gathering, account, MemoryKind::weights, most);
  std::size_t begin = 0;
  for (auto& bucket : buckets) {
    if (!bucket.owned) continue;
    auto& run = bucket.runs.front();
    run.own_value = {memory->span().data() + begin, run.size, run.layout.type, run.layout.element_bytes};
    bucket.memory.push_back(memory);
    begin += bytes_of_part(bucket, wires.rank());
  }
}

/// What the ranks need of communicator memory: one piece for each purpose, as each is made by all ranks together and
/// may cost more than it is long. Collective.
template <MemorySpace Space>
void allocate_shared(Buckets<Space>& buckets, Wires<Space>& wires, int stage,
                     const std::shared_ptr<MemoryAccount>& account) {
  // `wanted(bucket, run)` gives where a run's span goes, or null.
  const auto hold = [&](AnyCommunicator<Space>& comm, MemoryKind kind, auto&& wanted) {
    const auto each = [&](auto&& f) {
      for (auto& bucket : buckets)
        for (auto& run : bucket.runs)
          if (Span<AnyElement, Space>* const span = wanted(bucket, run)) f(bucket, run, *span);
    };
    std::size_t bytes = 0;
    each([&](auto&, auto& run, auto&) { bytes += round_up_to_lines(run.layout.bytes()); });
    if (bytes == 0) return;
    const auto memory = hold_shared(comm, account, kind, bytes);
    std::size_t begin = 0;
    each([&](auto& bucket, auto& run, auto& span) {
      span = run.layout.over(memory->span().subspan(begin, run.layout.bytes()));
      begin += round_up_to_lines(run.layout.bytes());
      bucket.memory.push_back(memory);
    });
  };
  if (stage == 3) allocate_own_values(buckets, wires, account);
  if (stage < 3)
    hold(wires.all, MemoryKind::weights, [](auto& bucket, auto& run) { return bucket.owned ? &run.value : nullptr; });
  if (stage < 2)
    hold(wires.reducing, MemoryKind::gradients,
         [](auto& bucket, auto& run) { return bucket.owned && bucket.trained ? &run.gradient : nullptr; });
  if (wires.parts() > 1)
    hold(wires.reducing, MemoryKind::in_flight, [](auto&, auto& run) { return run.packed ? &run.gradient : nullptr; });
}

/// Enough for the gradients of three buckets: one being filled, one being reduced, one between.
template <MemorySpace Space>
[[nodiscard]] std::size_t gradient_pool_bytes(const Buckets<Space>& buckets, bool lends) {
  std::vector<std::size_t> sizes;
  for (const auto& bucket : buckets) {
    std::size_t bytes = 0;
    for (const auto& run : bucket.runs)
      if (bucket.trained)
        bytes += (lends ? round_up_to_lines(run.layout.bytes()) : 0) + round_up_to_lines(run.travel_bytes());
    sizes.push_back(bytes);
  }
  std::sort(sizes.begin(), sizes.end(), std::greater<>{});
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < std::min<std::size_t>(sizes.size(), 3); ++i) bytes += sizes[i];
  return bytes;
}

/// What this rank updates of a bucket.
template <MemorySpace Space>
[[nodiscard]] ShardOf shard_of(const Bucket<Space>& bucket, const std::vector<Entry<Space>>& entries,
                               const AnyOptimizer<Space>& optimizer, const TrainingPolicies& policies) {
  const ElementType type = bucket.runs.front().layout.type;
  ShardOf shard{type, policies.has_master(type), bucket.members.size(), {}};
  for (const auto& run : bucket.runs)
    for (std::size_t i = 0; i < run.updated.size(); ++i) {
      const Piece& piece = run.updated[i];
      const auto& entry = entries[piece.entry];
      const std::size_t end = i + 1 < run.updated.size() ? run.updated[i + 1].at : run.begin + run.size;
      const auto member = std::find(bucket.members.begin(), bucket.members.end(), piece.entry);
      PieceOf& of = shard.pieces.emplace_back();
      of.parameter = static_cast<std::size_t>(member - bucket.members.begin());
      of.size = piece.size;
      of.extent = end - piece.at;
      if (optimizer.takes(entry.options)) of.matrix = {entry.options.rows, entry.size() / entry.options.rows};
    }
  return shard;
}

/// What this rank needs for itself: its part of the gradients, and the optimizer's state and intermediate results.
template <MemorySpace Space>
void allocate_local(Buckets<Space>& buckets, const std::vector<Entry<Space>>& entries,
                    const AnyOptimizer<Space>& optimizer, const TrainingPolicies& policies,
                    const std::shared_ptr<MemoryAccount>& account) {
  const auto workspace = std::make_shared<Workspace<Space>>();
  for (auto& bucket : buckets) {
    if (!bucket.trained) continue;
    for (auto& run : bucket.runs) {
      if (!run.gradient_apart) continue;
      bucket.memory.push_back(hold_local<Space>(account, MemoryKind::gradients, run.size * size_of(run.wire)));
      run.own_gradient = {bucket.memory.back()->span().data(), run.size, run.wire, size_of(run.wire)};
    }
    bucket.update = optimizer.make_update(shard_of(bucket, entries, optimizer, policies), workspace, account);
  }
  workspace->allocate(account);
}

}  // namespace distx::detail
