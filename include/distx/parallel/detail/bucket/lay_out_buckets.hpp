// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <bit>

#include "distx/comm/detail/host_values.hpp"
#include "distx/parallel/data_parallel_options.hpp"
#include "distx/parallel/detail/base/training_communicators.hpp"
#include "distx/parallel/detail/base/training_policies.hpp"
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

/// Borrowed gradients of at most this many bytes are packed into one message: two copies cost less than a message.
inline constexpr std::size_t packed_gradient_bytes = 65536;

/// Returns which entries directly follow the entry before them in memory, on every rank: one message then moves both.
///
/// @param with_values  whether weights must be adjacent too, because they are gathered. Collective over `comm`.
template <MemorySpace Space>
[[nodiscard]] std::vector<std::uint8_t> find_adjacent(AnyCommunicator<Space>& comm,
                                                      const std::vector<ParameterEntry<Space>>& entries,
                                                      bool with_values, const std::source_location& location) {
  const auto meets = [](Span<AnyElement, Space> a, Span<AnyElement, Space> b) {
    return a.bytes() + a.size_bytes() == b.bytes();
  };
  std::vector<std::uint8_t> adjacent(entries.size());
  for (std::size_t i = 1; i < entries.size(); ++i) {
    const auto &a = entries[i - 1], &b = entries[i];
    if (a.owned || b.owned || !a.trained() || !b.trained() || a.type() != b.type()) continue;
    adjacent[i] = meets(a.gradient, b.gradient) && (!with_values || meets(a.value, b.value)) ? 1 : 0;
  }
  if (comm.size() > 1 && !entries.empty()) all_reduce_values(comm, Span<std::uint8_t>(adjacent), min, location);
  return adjacent;
}

/// Returns the flat buffers of a borrowed bucket: large and adjacent parameters in place, and one packed buffer for the
/// small ones, whose memory is allocated later.
template <MemorySpace Space>
[[nodiscard]] std::vector<FlatBuffer<Space>> borrowed_buffers(const std::vector<ParameterEntry<Space>>& entries,
                                                              const std::vector<std::size_t>& members,
                                                              const std::vector<std::uint8_t>& adjacent,
                                                              bool with_values, int parts) {
  std::vector<FlatBuffer<Space>> buffers;
  std::vector<std::size_t> small;
  const auto add = [&](const std::vector<std::size_t>& together) -> FlatBuffer<Space>& {
    FlatBuffer<Space>& buffer = buffers.emplace_back();
    buffer.layout = lay_out(entries, together, 1, parts);
    return buffer;
  };
  const auto in_place = [&](const std::vector<std::size_t>& together) {
    FlatBuffer<Space>& buffer = add(together);
    const auto over = [&](Span<AnyElement, Space> first) {
      return Span<AnyElement, Space>(first.data(), buffer.layout.size, first.type(), first.element_bytes());
    };
    const auto& first = entries[together.front()];
    buffer.gradient = over(first.gradient);
    if (with_values) buffer.value = over(first.value);
  };
  for (std::size_t end = members.size(); end > 0;) {  // members descend; memory ascends
    std::vector<std::size_t> together{members[--end]};
    std::size_t bytes = entries[together.back()].bytes();
    while (end > 0 && members[end - 1] == together.back() + 1 && adjacent[members[end - 1]] != 0) {
      together.push_back(members[--end]);
      bytes += entries[together.back()].bytes();
    }
    if (bytes > packed_gradient_bytes || parts == 1)
      in_place(together);
    else
      small.insert(small.end(), together.begin(), together.end());
  }
  if (small.size() == 1)
    in_place(small);
  else if (!small.empty())
    add(small).packed = true;
  return buffers;
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
      buffer.kept = layout.fragments(layout.partition.begin(rank), layout.partition.end(rank));
      buffer.updated = layout.fragments(buffer.begin, buffer.begin + buffer.size);
    }
  }
  return buckets;
}

}  // namespace distx::inline DISTX_ABI::detail
