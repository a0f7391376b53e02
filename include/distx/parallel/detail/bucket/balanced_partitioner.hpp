// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <optional>

#include "distx/parallel/detail/bucket/bucket_layout.hpp"

namespace distx::inline DISTX_ABI::detail {

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
