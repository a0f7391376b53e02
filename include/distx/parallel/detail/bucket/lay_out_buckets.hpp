// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <bit>

#include "distx/parallel/data_parallel_options.hpp"
#include "distx/parallel/detail/base/training_communicators.hpp"
#include "distx/parallel/detail/base/training_policies.hpp"
#include "distx/parallel/detail/bucket/balanced_partitioner.hpp"
#include "distx/parallel/detail/bucket/borrowed_buffers.hpp"
#include "distx/parallel/detail/bucket/bucket.hpp"
#include "distx/parallel/detail/optimizer/any_optimizer.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Returns the limit of the first bucket, which is smaller so that the first reduction starts early.
[[nodiscard]] inline std::size_t first_bucket_bytes(std::size_t bucket_bytes) noexcept {
  return bucket_bytes == unlimited ? bucket_bytes : std::min(bucket_bytes, std::size_t{1} << 20);
}

/// Returns the parameters of each bucket: in reverse order, up to the options' bytes, at least one.
///
/// Trained parameters come first, then frozen ones that are owned. The parameters of a bucket have one element type,
/// are all owned or all borrowed, and, if `by_unit`, belong to one unit.
template <MemorySpace Space>
std::vector<std::vector<std::size_t>> plan_buckets(const std::vector<ParameterEntry<Space>>& entries,
                                                   const DataParallelOptions& options, bool by_unit) {
  std::vector<std::vector<std::size_t>> buckets;
  for (const bool trained : {true, false}) {
    std::size_t held = 0;
    bool begins = true;
    for (std::size_t i = entries.size(); i-- > 0;) {
      const auto& entry = entries[i];
      if (entry.trained() != trained || (!trained && !entry.owned)) continue;
      const std::size_t limit = buckets.size() <= 1 ? first_bucket_bytes(options.bucket_bytes) : options.bucket_bytes;
      const auto fits = [&] {
        const auto& last = entries[buckets.back().back()];
        return last.type() == entry.type() && (last.owned != nullptr) == (entry.owned != nullptr) &&
               (!by_unit || last.unit() == entry.unit()) && held <= limit && entry.bytes() <= limit - held;
      };
      if (std::exchange(begins, false) || !fits()) {
        buckets.emplace_back();
        held = 0;
      }
      buckets.back().push_back(i);
      held += entry.bytes();
    }
  }
  return buckets;
}

/// Returns the buckets of a training, laid out but without memory. Collective over all ranks.
template <MemorySpace Space>
[[nodiscard]] Buckets<Space> lay_out_buckets(const std::vector<ParameterEntry<Space>>& entries,
                                             TrainingCommunicators<Space>& comms, const AnyOptimizer<Space>& optimizer,
                                             const TrainingPolicies& policies, const DataParallelOptions& options,
                                             const std::source_location& location) {
  Buckets<Space> buckets;
  const int stage = policies.stage;
  const auto whole = [&](std::size_t entry) { return optimizer.takes(entries[entry].options); };
  bool balances = false;
  for (std::size_t i = 0; i < entries.size(); ++i) balances = balances || (entries[i].trained() && whole(i));
  const auto adjacent = find_adjacent(comms.all(), entries, stage > 0, location);
  const int rank = comms.shard(), parts = comms.shards();
  BalancedPartitioner partitioner(parts);
  for (auto& members : plan_buckets(entries, options, stage == 3)) {
    buckets.push_back({.members = std::move(members)});
    Bucket<Space>& bucket = buckets.back();
    bucket.owned = entries[bucket.members.front()].owned != nullptr;
    bucket.trained = entries[bucket.members.front()].trained();
    if (bucket.owned)
      bucket.buffers.push_back({.layout = lay_out(entries, bucket.members, alignment_bytes, parts)});
    else
      bucket.buffers = borrowed_buffers(entries, bucket.members, adjacent, stage > 0, parts);
    for (auto& buffer : bucket.buffers) {
      auto& layout = buffer.layout;
      if (balances && bucket.trained) layout.partition = partitioner.partition(layout, whole);
      buffer.separate_gradient_shard = bucket.trained && policies.separate_gradient_shard(layout.type);
      buffer.communication_type = bucket.trained ? policies.communication_type_of(layout.type) : layout.type;
      if (bucket.trained && layout.type == ElementType::f32 && comms.all().size() > 1) {
        buffer.hook = policies.hook;
        buffer.restores = policies.compressed_type.has_value();
        if (buffer.restores) buffer.communication_type = *policies.compressed_type;
      }
      buffer.fills_shard = parts == 1 && bucket.owned && buffer.separate_gradient_shard && !buffer.converts() &&
                           policies.accumulation != Accumulation::sharded;
      if (bucket.trained && policies.virtual_ranks > 0) {
        buffer.levels = static_cast<std::size_t>(std::bit_width(policies.leaves(parts)) - 1);
        buffer.exchange_counts.assign(static_cast<std::size_t>(parts), layout.partition.size(rank));
        buffer.exchanged = parts == 1 ? 0 : layout.partition.most_exchanged();
      }
      buffer.separate_value_shard = stage == 3;
      if (bucket.owned && layout.type == ElementType::f32 && parts > 1 && policies.weight_hook != nullptr) {
        buffer.weight_hook = policies.weight_hook;
        std::vector<std::size_t> begins{0};
        for (const std::size_t size : layout.partition.counts())
          begins.push_back(buffer.encoded_size += buffer.weight_hook->encoded_size(size));
        buffer.encoding = Partition::at(begins);
      }
      buffer.begin = stage == 0 ? 0 : layout.partition.begin(rank);
      buffer.size = stage == 0 ? layout.size : layout.partition.size(rank);
      buffer.kept = layout.pieces(layout.partition.begin(rank), layout.partition.end(rank));
      buffer.updated = layout.pieces(buffer.begin, buffer.begin + buffer.size);
    }
  }
  return buckets;
}

}  // namespace distx::inline DISTX_ABI::detail
