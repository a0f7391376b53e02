// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/movement.hpp"
#include "distx/parallel/any_optimizer.hpp"
#include "distx/parallel/borrowed_runs.hpp"
#include "distx/parallel/deal.hpp"
#include "distx/parallel/plan_buckets.hpp"
#include "distx/parallel/training_policies.hpp"
#include "distx/parallel/units.hpp"

namespace distx::detail {

/// The buckets of a training, laid out and without memory. Collective.
template <MemorySpace Space>
void lay_out_buckets(Buckets<Space>& buckets, const std::vector<Entry<Space>>& entries, Wires<Space>& wires,
                     const AnyOptimizer<Space>& optimizer, const TrainingPolicies& policies,
                     const DataParallelOptions& options, const std::source_location& location) {
  const int stage = policies.stage;
  const auto whole = [&](std::size_t entry) { return optimizer.takes(entries[entry].options); };
  bool deals = false;
  for (std::size_t i = 0; i < entries.size(); ++i) deals = deals || (entries[i].trained() && whole(i));
  const auto adjacent = find_adjacent(wires.all, entries, stage > 0, location);
  const int rank = wires.rank(), parts = wires.parts();
  Dealer dealer(parts);
  for (auto& members : plan_buckets(entries, options, stage == 3)) {
    Bucket<Space>& bucket = buckets.emplace_back(std::move(members));
    bucket.owned = entries[bucket.members.front()].owned != nullptr;
    bucket.trained = entries[bucket.members.front()].trained();
    if (bucket.owned) bucket.runs.push_back({.layout = lay_out(entries, bucket.members, alignment_bytes, parts)});
    else bucket.runs = borrowed_runs(entries, bucket.members, adjacent, stage > 0, parts);
    for (auto& run : bucket.runs) {
      auto& layout = run.layout;
      if (deals && bucket.trained) layout.cut = dealer.deal(layout, whole);
      run.gradient_apart = bucket.trained && policies.gradients_apart(layout.type);
      run.wire = bucket.trained ? policies.wire_of(layout.type) : layout.type;
      run.value_apart = stage == 3;
      run.begin = stage == 0 ? 0 : layout.cut.begin(rank);
      run.size = stage == 0 ? layout.size : layout.cut.size(rank);
      run.kept = layout.pieces(layout.cut.begin(rank), layout.cut.end(rank));
      run.updated = layout.pieces(run.begin, run.begin + run.size);
    }
  }
}

/// Memory for the parts of the values: in one piece, since every rank asks for the same, and what is dealt out whole
/// makes the parts of one bucket uneven. Collective.
template <MemorySpace Space>
void allocate_own_values(Buckets<Space>& buckets, Wires<Space>& wires, const std::shared_ptr<MemoryAccount>& account) {
  const auto bytes_of_part = [](const Bucket<Space>& bucket, int part) {
    const Layout& layout = bucket.runs.front().layout;
    return bucket.owned ? whole_lines(layout.cut.size(part) * layout.element_bytes) : 0;
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

/// What the ranks need of communicator memory. Collective.
template <MemorySpace Space>
void allocate_shared(Buckets<Space>& buckets, Wires<Space>& wires, int stage,
                     const std::shared_ptr<MemoryAccount>& account) {
  const auto hold = [&](Bucket<Space>& bucket, AnyCommunicator<Space>& comm, MemoryKind kind, const Run<Space>& run,
                        std::size_t elements) {
    bucket.memory.push_back(hold_shared(comm, account, kind, elements * run.layout.element_bytes));
    return Span<AnyElement, Space>(bucket.memory.back()->span().data(), elements, run.layout.type,
                                   run.layout.element_bytes);
  };
  if (stage == 3) allocate_own_values(buckets, wires, account);
  for (auto& bucket : buckets) {
    for (auto& run : bucket.runs) {
      const std::size_t size = run.layout.size;
      if (bucket.owned && stage < 3) run.value = hold(bucket, wires.all, MemoryKind::weights, run, size);
      if (bucket.owned && bucket.trained && stage < 2)
        run.gradient = hold(bucket, wires.reducing, MemoryKind::gradients, run, size);
      if (run.packed && wires.parts() > 1)
        run.gradient = hold(bucket, wires.reducing, MemoryKind::in_flight, run, size);
    }
  }
}

/// Enough for the gradients of three buckets: one being filled, one being reduced, one between.
template <MemorySpace Space>
[[nodiscard]] std::size_t gradient_pool_bytes(const Buckets<Space>& buckets, bool lends) {
  std::vector<std::size_t> sizes;
  for (const auto& bucket : buckets) {
    std::size_t bytes = 0;
    for (const auto& run : bucket.runs)
      if (bucket.trained) bytes += (lends ? whole_lines(run.layout.bytes()) : 0) + whole_lines(run.travel_bytes());
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
      bucket.memory.push_back(
          hold_local<Space>(account, MemoryKind::gradients, run.size * size_of(run.wire)));
      run.own_gradient = {bucket.memory.back()->span().data(), run.size, run.wire, size_of(run.wire)};
    }
    bucket.update = optimizer.make_update(shard_of(bucket, entries, optimizer, policies), workspace, account);
  }
  workspace->allocate(account);
}

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
      const auto memory = pool->take(run.layout.bytes());
      whole = memory.empty() ? Loan<Space>(*pool, run.layout.bytes()) : Loan<Space>(*pool, memory);
      values = run.layout.over(whole.span());
      fill(stream, whole.span(), std::byte{0});
    }
    for (const auto& place : run.layout.places) {
      auto& state = *entries[place.entry].owned;
      const auto value = values.subspan(place.begin, place.size);
      if (state.value.empty()) state.initialize(value);
      else copy(stream, bytes_of(value), bytes_of(state.value));
      state.value = run.value_apart ? Span<AnyElement, Space>{} : value;
      state.value_memory = run.value_apart ? nullptr : bucket.memory.front();
      state.sharded = run.value_apart;
      if (!run.gradient.empty()) state.gradient = run.gradient.subspan(place.begin, place.size);
    }
    if (wires.all.size() > 1) wires.all.execute(Broadcast<AnyElement, Space>{values, root, location});
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
      for (const auto& piece : run.updated)
        bucket.update->adopt({}, number++, run.segment(piece, entries).weight);
  }
}

}  // namespace distx::detail
