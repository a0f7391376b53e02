// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/data_parallel_options.hpp"
#include "distx/parallel/parameter_list.hpp"

namespace distx::detail {

/// Which entries make up each bucket: in reverse order, as many as the options' bytes hold, one at least.
///
/// First those that are trained, then owned ones that are frozen. The entries of a bucket have one element type, are
/// all owned or all borrowed, and, where `by_unit`, belong to one unit.
template <MemorySpace Space>
std::vector<std::vector<std::size_t>> plan_buckets(const std::vector<Entry<Space>>& entries,
                                                   const DataParallelOptions& options, bool by_unit) {
  std::vector<std::vector<std::size_t>> buckets;
  for (const bool trained : {true, false}) {
    std::size_t held = 0;
    bool begins = true;
    for (std::size_t i = entries.size(); i-- > 0;) {
      const auto& entry = entries[i];
      if (entry.trained() != trained || (!trained && !entry.owned)) continue;
      const std::size_t limit = buckets.size() <= 1 ? options.first_bucket_bytes() : options.bucket_bytes;
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

}  // namespace distx::detail
