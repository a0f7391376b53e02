// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <source_location>

#include "distx/checkpoint/training.hpp"
#include "distx/parallel/detail/engine/engine_interface.hpp"

namespace distx::inline DISTX_ABI::checkpoint::detail {

/// Returns a training's state, after the work that the training has enqueued. Local.
template <MemorySpace Space>
[[nodiscard]] TrainingState<Space> state_of(const SavedTraining<Space>& training,
                                            const std::source_location& location) {
  TrainingState<Space> state;
  training.engine.ordered(training.stream, [&] { state = training.engine.state(location); });
  return state;
}

}  // namespace distx::inline DISTX_ABI::checkpoint::detail
