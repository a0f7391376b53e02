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

/// Returns the averages that still exist, and forgets the others.
template <MemorySpace Space>
[[nodiscard]] std::vector<std::shared_ptr<AverageValues<Space>>> living(
    std::vector<std::weak_ptr<AverageValues<Space>>>& all) {
  std::erase_if(all, [](const auto& average) { return average.expired(); });
  return {all.begin(), all.end()};
}

/// Returns the name of the k-th average's arrays.
[[nodiscard]] inline std::string average_name(std::size_t k) {
  return "exponential_average" + (k == 0 ? std::string() : std::to_string(k + 1));
}

}  // namespace distx::inline DISTX_ABI::detail
