// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <vector>

#include "distx/comm/calls/collectives.hpp"
#include "distx/memory/detail/lines.hpp"

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

}  // namespace distx::inline DISTX_ABI::detail
