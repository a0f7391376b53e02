// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <vector>

#include "distx/comm/calls/collectives.hpp"
#include "distx/memory/detail/lines.hpp"
#include "distx/parallel/parameter_list.hpp"

namespace distx::inline DISTX_ABI::detail {

/// A partition of a buffer into one contiguous shard per rank, in rank order; shards may be empty.
class Partition {
 public:
  Partition() = default;

  /// Returns the most even partition whose boundaries are multiples of 64 bytes.
  [[nodiscard]] static Partition at_lines(std::size_t size, std::size_t element_bytes, int parts) {
    return Partition(parts,
                     [&](int part) { return aligned_part_begin(size * element_bytes, part, parts) / element_bytes; });
  }
  /// @param begins  where each shard begins, and the size of the buffer
  [[nodiscard]] static Partition at(const std::vector<std::size_t>& begins) {
    return Partition(static_cast<int>(begins.size()) - 1,
                     [&](int part) { return begins[static_cast<std::size_t>(part)]; });
  }

  [[nodiscard]] std::size_t begin(int part) const noexcept { return begins_[static_cast<std::size_t>(part)]; }
  [[nodiscard]] std::size_t end(int part) const noexcept { return begins_[static_cast<std::size_t>(part) + 1]; }
  [[nodiscard]] std::size_t size(int part) const noexcept { return counts_[static_cast<std::size_t>(part)]; }
  /// Returns the number of elements that a rank with the largest shard receives if every rank sends it that shard.
  [[nodiscard]] std::size_t most_exchanged() const { return counts_.size() * *std::ranges::max_element(counts_); }
  /// Returns the sizes of all shards, as a collective takes them; borrowed.
  [[nodiscard]] Counts counts() const noexcept { return counts_; }

 private:
  template <class Begin>
  Partition(int parts, Begin&& begin) {
    for (int part = 0; part <= parts; ++part) begins_.push_back(begin(part));
    for (std::size_t part = 0; part + 1 < begins_.size(); ++part) counts_.push_back(begins_[part + 1] - begins_[part]);
  }

  std::vector<std::size_t> begins_;
  std::vector<std::size_t> counts_;
};

/// The range of one parameter in a flat buffer, in elements.
struct ParameterRange {
  std::size_t entry = 0;
  std::size_t begin = 0;
  std::size_t size = 0;
};

/// The part of one parameter that is in a rank's shard, in elements.
struct FragmentRange {
  std::size_t entry = 0;
  std::size_t offset = 0;  ///< in the parameter
  std::size_t at = 0;      ///< in the buffer
  std::size_t size = 0;
};

/// The parameters of one flat buffer, all of one element type, and its partition into shards. In elements.
struct BucketLayout {
  ElementType type{};
  std::size_t element_bytes = 1;
  std::size_t size = 0;  ///< padding included
  std::vector<ParameterRange> ranges{};
  Partition partition{};

  [[nodiscard]] std::size_t bytes() const noexcept { return size * element_bytes; }

  /// Returns the parts of parameters in [begin, end), without padding.
  [[nodiscard]] std::vector<FragmentRange> fragments(std::size_t begin, std::size_t end) const {
    std::vector<FragmentRange> found;
    for (const auto& range : ranges) {
      const std::size_t from = std::max(begin, range.begin), to = std::min(end, range.begin + range.size);
      if (from < to) found.push_back({range.entry, from - range.begin, from, to - from});
    }
    return found;
  }
  template <MemorySpace Space>
  [[nodiscard]] Span<AnyElement, Space> over(Span<std::byte, Space> memory) const noexcept {
    return {memory.data(), size, type, element_bytes};
  }
};

/// Returns the layout of `members`, contiguous and in their order, each aligned to `alignment` bytes.
/// @pre members has at least one, all of one type
template <MemorySpace Space>
[[nodiscard]] BucketLayout lay_out(const std::vector<ParameterEntry<Space>>& entries,
                                   const std::vector<std::size_t>& members, std::size_t alignment, int parts) {
  BucketLayout layout;
  layout.type = entries[members.front()].type();
  layout.element_bytes = entries[members.front()].element_bytes();
  const std::size_t step = std::max<std::size_t>(1, alignment / layout.element_bytes);
  for (const auto member : members) {
    layout.ranges.push_back({member, layout.size, entries[member].size()});
    layout.size = (layout.size + entries[member].size() + step - 1) / step * step;
  }
  if (!HostAccessible<Space> && alignment == alignment_bytes) {
    // NCCL's collectives need equal shards; unequal ones are sent as messages.
    const std::size_t lines =
        std::max<std::size_t>(1, alignment_bytes / layout.element_bytes) * static_cast<std::size_t>(parts);
    layout.size = (layout.size + lines - 1) / lines * lines;
  }
  layout.partition = Partition::at_lines(layout.size, layout.element_bytes, parts);
  return layout;
}

/// Partitions buffers in which some parameters must stay whole, and balances the shards' sizes over all buffers.
class BalancedPartitioner {
 public:
  explicit BalancedPartitioner(int parts) : loads_(static_cast<std::size_t>(parts)) {}

  /// Returns the partition that minimizes the largest load. The others are split at multiples of 64 bytes.
  template <class Whole>
  [[nodiscard]] Partition partition(const BucketLayout& layout, Whole&& whole) {
    std::vector<WeightedItem> items;
    for (std::size_t i = 0; i < layout.ranges.size(); ++i) {
      const std::size_t end = i + 1 < layout.ranges.size() ? layout.ranges[i + 1].begin : layout.size;
      const std::size_t size = end - layout.ranges[i].begin;
      items.push_back({size, whole(layout.ranges[i].entry) ? size : alignment_bytes / layout.element_bytes});
    }
    std::size_t low = 0;
    std::size_t high = *std::max_element(loads_.begin(), loads_.end()) + layout.size;
    while (low < high) {
      const std::size_t middle = low + (high - low) / 2;
      if (within(middle, items))
        high = middle;
      else
        low = middle + 1;
    }
    const auto begins = within(high, items).value();  // every shard can hold all
    for (std::size_t part = 0; part < loads_.size(); ++part) loads_[part] += begins[part + 1] - begins[part];
    return Partition::at(begins);
  }

 private:
  struct WeightedItem {
    std::size_t size;
    std::size_t step;  // each shard takes a multiple of it, or the rest of the item
  };

  /// Returns where the shards begin if each takes as much as it can, in order, with no load above the limit.
  [[nodiscard]] std::optional<std::vector<std::size_t>> within(std::size_t limit,
                                                               const std::vector<WeightedItem>& items) const {
    std::vector<std::size_t> begins{0};
    std::size_t item = 0;
    std::size_t taken = 0;  // of the item
    for (const std::size_t load : loads_) {
      std::size_t free = limit - std::min(limit, load);
      std::size_t at = begins.back();
      for (; item < items.size(); ++item, taken = 0) {
        const std::size_t rest = items[item].size - taken;
        const std::size_t takes = rest <= free ? rest : free / items[item].step * items[item].step;
        taken += takes;
        at += takes;
        free -= takes;
        if (takes < rest) break;
      }
      begins.push_back(at);
    }
    if (item < items.size()) return {};
    return begins;
  }

  std::vector<std::size_t> loads_;
};

}  // namespace distx::inline DISTX_ABI::detail
