// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <string>
#include <vector>

#include "distx/core/span.hpp"
#include "distx/parallel/detail/memory/tracked_memory.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The values of an exponential average: of each parameter, the part that this rank updates.
template <MemorySpace Space>
struct AverageValues {
  TrackedMemory<Space> memory;
  std::vector<Span<AnyElement, Space>> values;  // by parameter; empty where this rank updates nothing
};

/// The averages of a training that still exist, in the order in which they were made.
template <MemorySpace Space>
class LivingAverages {
 public:
  void add(std::weak_ptr<AverageValues<Space>> average) { all_.push_back(std::move(average)); }
  [[nodiscard]] std::vector<std::shared_ptr<AverageValues<Space>>> living() {
    std::vector<std::shared_ptr<AverageValues<Space>>> averages;
    std::erase_if(all_, [](const auto& average) { return average.expired(); });
    for (const auto& average : all_) averages.push_back(average.lock());
    return averages;
  }

 private:
  std::vector<std::weak_ptr<AverageValues<Space>>> all_;
};

/// Returns the name of the k-th average's arrays.
[[nodiscard]] inline std::string average_name(std::size_t k) {
  return "exponential_average" + (k == 0 ? std::string() : std::to_string(k + 1));
}

}  // namespace distx::inline DISTX_ABI::detail
