// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <vector>

#include "distx/comm/calls/collectives.hpp"
#include "distx/memory/detail/lines.hpp"

namespace distx::detail {

/// Which part of a run of elements each rank keeps: side by side in rank order, together all of it, some maybe empty.
class Cut {
 public:
  Cut() = default;

  /// On lines of 64 bytes, as even as lines allow.
  [[nodiscard]] static Cut at_lines(std::size_t size, std::size_t element_bytes, int parts) {
    return Cut(parts, [&](int part) { return aligned_part_begin(size * element_bytes, part, parts) / element_bytes; });
  }
  /// Where each part begins; the last number is the size.
  [[nodiscard]] static Cut at(const std::vector<std::size_t>& begins) {
    return Cut(static_cast<int>(begins.size()) - 1, [&](int part) { return begins[static_cast<std::size_t>(part)]; });
  }

  [[nodiscard]] std::size_t begin(int part) const noexcept { return begins_[static_cast<std::size_t>(part)]; }
  [[nodiscard]] std::size_t end(int part) const noexcept { return begins_[static_cast<std::size_t>(part) + 1]; }
  [[nodiscard]] std::size_t size(int part) const noexcept { return counts_[static_cast<std::size_t>(part)]; }
  /// Of all parts, as a collective takes them; borrowed.
  [[nodiscard]] Counts counts() const noexcept { return counts_; }

 private:
  template <class Begin>
  Cut(int parts, Begin&& begin) {
    for (int part = 0; part <= parts; ++part) begins_.push_back(begin(part));
    for (std::size_t part = 0; part + 1 < begins_.size(); ++part) counts_.push_back(begins_[part + 1] - begins_[part]);
  }

  std::vector<std::size_t> begins_;
  std::vector<std::size_t> counts_;
};

}  // namespace distx::detail
