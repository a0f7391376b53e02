// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// The engine in the compiled part of the library, for headers that use it directly. DISTX_COMPILED is `extern` where
// its templates are declared, and nothing where they are defined.
#include "distx/parallel/detail/engine/engine_owner_calls.hpp"

namespace distx::detail {

DISTX_COMPILED template class TrainingEngine<Host>;
DISTX_COMPILED template class MemoryPool<Host>;
DISTX_COMPILED template class GradientReducer<Host>;
DISTX_COMPILED template class OptimizerShards<Host>;
DISTX_COMPILED template class WeightGatherer<Host>;

}  // namespace distx::detail
