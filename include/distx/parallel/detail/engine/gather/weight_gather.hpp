// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/observe/flight_recorder.hpp"
#include "distx/parallel/detail/bucket/bucket.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Returns the label of a bucket's communication in the flight record, with the name of its first parameter.
template <MemorySpace Space>
[[nodiscard]] flight::Label label_of(const Bucket<Space>& bucket, std::string_view phase, std::size_t index,
                                     const std::vector<ParameterEntry<Space>>& entries) {
  return flight::Label(
      {.phase = phase,
       .bucket = static_cast<std::int64_t>(index),
       .parameter = bucket.members.empty() ? std::string_view() : entries[bucket.members.front()].name});
}

/// The all-gathers of one bucket's weights: each rank contributes its shard and receives all shards, as the policy
/// Compress encodes them.
template <MemorySpace Space>
class WeightGather {
 public:
  using stream = typename Space::stream;
  using here = std::source_location;
  using Entries = std::vector<ParameterEntry<Space>>;

  /// @param overlap  whether the call returns before the weights have arrived
  /// @param identity  what all ranks must gather: compared where calls are compared
  /// @param label  its name in errors
  /// @param owner  of the memory that is gathered into, if that is not the bucket's
  /// @param exact  whether nothing is encoded
  void start(Bucket<Space>& bucket, AnyCommunicator<Space>& comm, const Entries& entries, bool overlap,
             std::uint64_t identity, std::string_view label, stream after, const here& location,
             const TrackedMemory<Space>& owner = nullptr, bool exact = false) {
    exact_ = exact;
    for (auto& buffer : bucket.buffers) {
      buffer.pack_values(after, entries);
      auto whole = buffer.packed ? buffer.gradient : buffer.value;
      auto shard = buffer.separate_value_shard ? buffer.value_shard : buffer.own(whole);
      auto counts = buffer.layout.partition.counts();
      if (buffer.weight_hook != nullptr && !exact) {
        buffer.encode_values(comm.rank());
        whole = buffer.encoded;
        shard = buffer.encoded_shard(comm.rank());
        counts = buffer.encoding.counts();
      }
      const AllGather<AnyElement, Space> call{shard, whole, counts, location, identity, label};
      if (!overlap) {
        make_in_order(comm, call, after);
        continue;
      }
      auto& pending = pending_.emplace_back(comm.start(call, after));
      for (const auto& memory : bucket.memory) pending.keep(memory);
      if (owner != nullptr) pending.keep(owner);
    }
    in_flight_ = true;
  }
  [[nodiscard]] bool in_flight() const noexcept { return in_flight_; }
  void finish(Bucket<Space>& bucket, const Entries& entries, stream after) {
    if (!std::exchange(in_flight_, false)) return;
    for (auto& pending : pending_) pending.wait(after);
    pending_.clear();
    for (auto& buffer : bucket.buffers) {
      if (buffer.weight_hook != nullptr && !exact_) buffer.decode_values();
      buffer.unpack(after, entries, &ParameterEntry<Space>::value);
    }
  }
  /// Ends what is in flight, or waits for it, before its memory is released.
  void abandon() noexcept { pending_.clear(); }

 private:
  std::vector<Pending<Space>> pending_;
  bool in_flight_ = false;
  bool exact_ = false;
};

}  // namespace distx::inline DISTX_ABI::detail
