// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/data_parallel_options.hpp"
#include "distx/parallel/parameter_list.hpp"

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

}  // namespace distx::inline DISTX_ABI::detail
