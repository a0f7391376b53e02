// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cerrno>
#include <system_error>

#include "distx/parallel/data_parallel_options.hpp"
#include "distx/parallel/detail/base/training_communicators.hpp"
#include "distx/parallel/detail/base/training_policies.hpp"
#include "distx/parallel/detail/bucket/bucket.hpp"
#include "distx/parallel/detail/optimizer/any_optimizer.hpp"
#include "distx/posix/unnamed_file.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Allocates this rank's shards of the weights in one piece, of the same size on every rank: parameters assigned whole
/// to a rank make the shards of a bucket uneven. Collective.
template <MemorySpace Space>
void allocate_value_shards(Buckets<Space>& buckets, TrainingCommunicators<Space>& comms,
                           const std::shared_ptr<MemoryAccount>& account) {
  const auto bytes_of_part = [](const Bucket<Space>& bucket, int part) {
    const BucketLayout& layout = bucket.buffers.front().layout;
    return bucket.owned ? round_up_to_lines(layout.partition.size(part) * layout.element_bytes) : 0;
  };
  std::size_t most = 0;
  for (int part = 0; part < comms.shards(); ++part) {
    std::size_t bytes = 0;
    for (const auto& bucket : buckets) bytes += bytes_of_part(bucket, part);
    most = std::max(most, bytes);
  }
  if (most == 0) return;
  const auto memory = allocate_tracked(comms.gathering(), account, observe::MemoryKind::weights, most, comms.made_at());
  std::size_t begin = 0;
  for (auto& bucket : buckets) {
    if (!bucket.owned) continue;
    auto& buffer = bucket.buffers.front();
    buffer.value_shard = {memory->span().data() + begin, buffer.size, buffer.layout.type, buffer.layout.element_bytes};
    bucket.memory.push_back(memory);
    begin += bytes_of_part(bucket, comms.shard());
  }
}

/// Returns memory of a host as an account counts it: this rank's part.
template <MemorySpace Space>
[[nodiscard]] TrackedMemory<Space> tracked_part(const CommonMemory<Space>& common,
                                                const std::shared_ptr<MemoryAccount>& account,
                                                observe::MemoryKind kind) {
  return std::make_shared<TrackedBytes<Space>>(account, kind,
                                               CommunicatorMemory<std::byte, Space>(common.part, common.owner));
}

/// Returns memory in which all ranks read the weights in place, as the only rank can in any memory; or nothing.
template <MemorySpace Space>
[[nodiscard]] std::optional<CommonMemory<Space>> allocate_in_place(TrainingCommunicators<Space>& comms,
                                                                   std::size_t bytes,
                                                                   const std::vector<ByteRange>& own) {
  auto& comm = comms.gathering();
  if (comms.shards() > 1) return comm.allocate_common(bytes, own, comms.made_at());
  const auto memory =
      std::make_shared<CommunicatorMemory<std::byte, Space>>(comm.template allocate<std::byte>(bytes, comms.made_at()));
  return CommonMemory<Space>{.span = memory->span(), .owner = memory};
}

/// Allocates weights in memory that all ranks access in place, or, if `on_hosts`, the ranks of each host; each rank's
/// account has its shards, or an equal part of its host's memory. Collective.
/// @return whether the ranks share memory; if not, nothing is allocated
template <MemorySpace Space>
[[nodiscard]] bool map_value_shards(Buckets<Space>& buckets, TrainingCommunicators<Space>& comms,
                                    const std::shared_ptr<MemoryAccount>& account, bool on_hosts = false) {
  std::size_t bytes = 0;
  std::vector<ByteRange> own;
  for (const auto& bucket : buckets) {
    if (!bucket.owned) continue;
    const auto& buffer = bucket.buffers.front();
    const std::size_t width = buffer.layout.element_bytes;
    own.push_back({bytes + buffer.begin * width, buffer.size * width});
    bytes += round_up_to_lines(buffer.layout.bytes());
  }
  if (bytes == 0) return false;
  const auto common =
      on_hosts ? comms.gathering().allocate_for_host(bytes, comms.made_at()) : allocate_in_place(comms, bytes, own);
  if (!common) return false;
  const auto part = on_hosts ? tracked_part(*common, account, observe::MemoryKind::weights) : nullptr;
  std::size_t begin = 0;
  for (auto& bucket : buckets) {
    if (!bucket.owned) continue;
    auto& buffer = bucket.buffers.front();
    buffer.mapped_value = buffer.layout.over(common->span.subspan(begin, buffer.layout.bytes()));
    buffer.value_shard = buffer.own(buffer.mapped_value);
    buffer.separate_value_shard = true;
    buffer.mapped_on_host = on_hosts;
    bucket.memory.push_back(
        on_hosts ? part
                 : std::make_shared<TrackedBytes<Space>>(
                       account, observe::MemoryKind::weights,
                       CommunicatorMemory<std::byte, Space>(bytes_of(buffer.value_shard), common->owner)));
    begin += round_up_to_lines(buffer.layout.bytes());
  }
  return true;
}

/// Allocates communicator memory, one piece for each purpose: each piece is a collective call. Collective.
template <MemorySpace Space>
void allocate_shared(Buckets<Space>& buckets, TrainingCommunicators<Space>& comms, int stage,
                     const DataParallelOptions& options, const std::shared_ptr<MemoryAccount>& account) {
  // `wanted(bucket, buffer)` returns the span to be set, or null.
  const auto hold = [&](AnyCommunicator<Space>& comm, observe::MemoryKind kind, auto&& wanted) {
    const auto each = [&](auto&& f) {
      for (auto& bucket : buckets)
        for (auto& buffer : bucket.buffers)
          if (Span<AnyElement, Space>* const span = wanted(bucket, buffer)) f(bucket, buffer, *span);
    };
    std::size_t bytes = 0;
    each([&](auto&, auto& buffer, auto&) { bytes += round_up_to_lines(buffer.layout.bytes()); });
    if (bytes == 0) return;
    const auto memory = allocate_tracked(comm, account, kind, bytes, comms.made_at());
    std::size_t begin = 0;
    each([&](auto& bucket, auto& buffer, auto& span) {
      span = buffer.layout.over(memory->span().subspan(begin, buffer.layout.bytes()));
      begin += round_up_to_lines(buffer.layout.bytes());
      bucket.memory.push_back(memory);
    });
  };
  // At stage 0 each rank updates all weights: it needs a copy. Groups share weights only if all ranks can, because
  // copies are communicator memory of all ranks.
  const bool alike = comms.across() == nullptr || comms.all().passes_operands();
  const bool maps = stage == 3 ? options.map_weights : stage > 0 && options.share_weights && alike;
  const bool mapped = maps && (map_value_shards(buckets, comms, account) ||
                               (stage < 3 && map_value_shards(buckets, comms, account, true)));
  if (stage == 3 && !mapped) allocate_value_shards(buckets, comms, account);
  if (stage < 3 && !mapped)
    hold(comms.all(), observe::MemoryKind::weights,
         [](auto& bucket, auto& buffer) { return bucket.owned ? &buffer.value : nullptr; });
  if (stage < 2)
    hold(comms.reducing(), observe::MemoryKind::gradients,
         [](auto& bucket, auto& buffer) { return bucket.owned && bucket.trained ? &buffer.gradient : nullptr; });
  if (comms.shards() > 1)
    hold(comms.reducing(), observe::MemoryKind::in_flight,
         [](auto&, auto& buffer) { return buffer.packed ? &buffer.gradient : nullptr; });
}

/// Returns the bytes of three buckets' gradients: one that fills, one that is reduced, one in between.
/// @param lazily  whether a gradient has memory from its first use on
template <MemorySpace Space>
[[nodiscard]] std::size_t gradient_pool_bytes(const Buckets<Space>& buckets, bool lazily) {
  std::vector<std::size_t> sizes;
  for (const auto& bucket : buckets) {
    std::size_t bytes = 0;
    for (const auto& buffer : bucket.buffers)
      if (bucket.trained)
        bytes += (lazily && !buffer.fills_shard ? round_up_to_lines(buffer.layout.bytes()) : 0) +
                 round_up_to_lines(buffer.converted_bytes()) + round_up_to_lines(buffer.exchanged_bytes());
    sizes.push_back(bytes);
  }
  std::sort(sizes.begin(), sizes.end(), std::greater<>{});
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < std::min<std::size_t>(sizes.size(), 3); ++i) bytes += sizes[i];
  return bytes;
}

/// Where a training keeps optimizer states and master weights: in files in `folder`, unless that is empty, or in host
/// memory if `offload`; and the context of errors.
struct StatePlacement {
  const std::string& folder;
  const ErrorContext& context;
  bool offload = false;
};

/// Allocates zeros of this rank in page-locked host memory, which kernels access in place.
/// @pre reaches_staging<Space>
/// @throws MemoryError
template <MemorySpace Space>
[[nodiscard]] TrackedMemory<Space> allocate_on_host(const std::shared_ptr<MemoryAccount>& account, std::size_t bytes) {
  try {
    const auto buffer = std::make_shared<StagingBuffer<std::byte, Space>>(bytes);
    return std::make_shared<TrackedBytes<Space>>(account, observe::MemoryKind::offloaded,
                                                 CommunicatorMemory<std::byte, Space>({buffer->data(), bytes}, buffer));
  } catch (const MemoryError& error) {
    throw MemoryError("cannot allocate " + std::to_string(bytes) +
                          " bytes of page-locked host memory for optimizer states: " + error.what() +
                          "; omit .offload, or let fewer ranks share the host's memory",
                      {}, error.code());
  }
}

/// Allocates zeros of this rank for optimizer states and master weights.
/// @throws InvalidArgument if the system does not create a file there; MemoryError if the disk or memory is full
template <MemorySpace Space>
[[nodiscard]] TrackedMemory<Space> allocate_for_optimizer(const std::shared_ptr<MemoryAccount>& account,
                                                          std::size_t bytes, const StatePlacement& place) {
  if constexpr (reaches_staging<Space>)
    if (place.offload) return allocate_on_host<Space>(account, bytes);
  if (place.folder.empty() || bytes == 0)
    return allocate_tracked_local<Space>(account, observe::MemoryKind::optimizer, bytes);
  const auto file = std::make_shared<posix::Mapping>(posix::map_unnamed_file(place.folder, bytes));
  if (!*file) {
    const int code = errno;
    const std::string message = "cannot reserve " + std::to_string(bytes) + " bytes for optimizer states in '" +
                                place.folder + "': " + std::generic_category().message(code);
    if (code == ENOSPC || code == EDQUOT || code == EFBIG || code == ENOMEM)
      throw MemoryError(message + "; free space there, or set .state_folder to a folder on a larger disk", {}, code);
    throw InvalidArgument(message + "; set .state_folder to an existing folder in which this process may create files",
                          place.context, code);
  }
  return std::make_shared<TrackedBytes<Space>>(
      account, observe::MemoryKind::offloaded,
      CommunicatorMemory<std::byte, Space>({static_cast<std::byte*>(file->native_handle().address), bytes}, file));
}

/// Describes this rank's part of a bucket to its optimizer.
template <MemorySpace Space>
[[nodiscard]] ShardDescription shard_of(const Bucket<Space>& bucket, const std::vector<ParameterEntry<Space>>& entries,
                                        const AnyOptimizer<Space>& optimizer, const TrainingPolicies& policies) {
  const ElementType type = bucket.buffers.front().layout.type;
  ShardDescription shard{type, policies.has_master(type), bucket.members.size(), {}, policies.part_of_model};
  for (const auto& buffer : bucket.buffers)
    for (std::size_t i = 0; i < buffer.updated.size(); ++i) {
      const FragmentRange& range = buffer.updated[i];
      const auto& entry = entries[range.entry];
      const std::size_t end = i + 1 < buffer.updated.size() ? buffer.updated[i + 1].at : buffer.begin + buffer.size;
      const auto member = std::find(bucket.members.begin(), bucket.members.end(), range.entry);
      FragmentDescription& of = shard.fragments.emplace_back();
      of.parameter = static_cast<std::size_t>(member - bucket.members.begin());
      of.size = range.size;
      of.extent = end - range.at;
      if (optimizer.takes(entry.options)) of.matrix = {entry.options.rows, entry.size() / entry.options.rows};
    }
  return shard;
}

/// Allocates what this rank alone uses: its shard of the gradients, and the optimizer's states and workspace.
template <MemorySpace Space>
void allocate_local(Buckets<Space>& buckets, const std::vector<ParameterEntry<Space>>& entries,
                    const AnyOptimizer<Space>& optimizer, const TrainingPolicies& policies, const StatePlacement& place,
                    const std::shared_ptr<MemoryAccount>& account) {
  const auto workspace = std::make_shared<OptimizerWorkspace<Space>>();
  for (auto& bucket : buckets) {
    if (!bucket.trained) continue;
    for (auto& buffer : bucket.buffers) {
      const auto allocate = [&](std::size_t size) {
        const std::size_t width = size_of(buffer.shard_type());
        bucket.memory.push_back(allocate_tracked_local<Space>(account, observe::MemoryKind::gradients, size * width));
        return Span<AnyElement, Space>(bucket.memory.back()->span().data(), size, buffer.shard_type(), width);
      };
      if (buffer.levels > 0) buffer.partials = allocate(buffer.levels * buffer.layout.size);
      if (buffer.separate_gradient_shard) buffer.gradient_shard = allocate(buffer.size);
      if constexpr (HostAccessible<Space>)
        if (buffer.hook != nullptr)
          buffer.hook_state = floats(allocate(buffer.hook->state_size(buffer.shape(entries, policies.stage == 0))));
    }
    bucket.update =
        optimizer.make_update(shard_of(bucket, entries, optimizer, policies), workspace,
                              [&](std::size_t bytes) { return allocate_for_optimizer<Space>(account, bytes, place); });
  }
  workspace->allocate(account);
}

}  // namespace distx::inline DISTX_ABI::detail
