// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <vector>

#include "distx/core/span.hpp"
#include "distx/parallel/detail/memory/tracked_memory.hpp"

namespace distx::detail {

/// The values of an exponential average: of each parameter, the part that this rank updates.
template <MemorySpace Space>
struct AverageValues {
  TrackedMemory<Space> memory;
  std::vector<Span<AnyElement, Space>> values;  // by parameter; empty where this rank updates nothing
};

/// Returns the element type of an average of weights.
[[nodiscard]] constexpr ElementType average_type(ElementType weight) noexcept {
  return weight == ElementType::f64 ? ElementType::f64 : ElementType::f32;
}

}  // namespace distx::detail
