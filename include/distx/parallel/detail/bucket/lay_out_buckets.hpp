// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/detail/bucket/borrowed_runs.hpp"
#include "distx/parallel/detail/bucket/deal.hpp"
#include "distx/parallel/detail/bucket/plan_buckets.hpp"
#include "distx/parallel/detail/engine/reducer.hpp"
#include "distx/parallel/detail/optimizer/any_optimizer.hpp"

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
    if (bucket.owned)
      bucket.runs.push_back({.layout = lay_out(entries, bucket.members, alignment_bytes, parts)});
    else
      bucket.runs = borrowed_runs(entries, bucket.members, adjacent, stage > 0, parts);
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

}  // namespace distx::detail
