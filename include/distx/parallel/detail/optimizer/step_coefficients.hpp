// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>

#include "distx/comm/detail/in_order.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The optimizer's coefficients of a step in the memory where captured kernels read them.
///
/// The host computes them for each step, as for a step that is not captured, so that both have the same bits.
template <MemorySpace Space>
class StepCoefficients {
 public:
  using stream = typename Space::stream;

  explicit StepCoefficients(std::size_t bytes) : there_(bytes) {
    for (auto& slot : slots_) slot.here = StagingBuffer<std::byte, Space>(bytes);
  }

  [[nodiscard]] const std::byte* there() const noexcept { return there_.data(); }
  /// Returns the host's memory for the next step's. Blocks the host only if it is several steps ahead.
  [[nodiscard]] std::byte* here() {
    const CoefficientSlot& slot = slots_[turn_];
    if (!slot.copied.done()) slot.copied.synchronize();
    return slot.here.data();
  }
  /// Enqueues the copy of what was written there.
  void upload(stream after) {
    const CoefficientSlot& slot = slots_[turn_];
    copy(after, there_.span(), Span<const std::byte>(slot.here));
    slot.copied.record(after);
    turn_ = (turn_ + 1) % slots_.size();
  }

 private:
  struct CoefficientSlot {
    StagingBuffer<std::byte, Space> here{};
    typename Space::event copied{};
  };

  Buffer<std::byte, Space> there_;
  std::array<CoefficientSlot, 4> slots_{};
  std::size_t turn_ = 0;
};

}  // namespace distx::inline DISTX_ABI::detail
