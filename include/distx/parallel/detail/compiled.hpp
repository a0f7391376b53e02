// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// The templates of parallel/ in the compiled form. DISTX_COMPILED is `extern` where they are declared, and nothing
// where they are defined.
#include "distx/optim/adamw.hpp"
#include "distx/optim/lamb.hpp"
#include "distx/optim/mixed.hpp"
#include "distx/optim/muon.hpp"
#include "distx/optim/sgd.hpp"
#include "distx/parallel/data_parallel.hpp"
#include "distx/parallel/exponential_average.hpp"

// NOLINTBEGIN(bugprone-macro-parentheses): the argument is a type
/// The templates that trainings in one memory space use.
#define DISTX_COMPILED_TRAINING(Space)                                                                          \
  namespace distx {                                                                                             \
  DISTX_COMPILED template class ParameterList<Space>;                                                           \
  DISTX_COMPILED template class Unsharded<Space>;                                                               \
  DISTX_COMPILED template class ExponentialAverage<Space>;                                                      \
  }                                                                                                             \
  namespace distx::detail {                                                                                     \
  DISTX_COMPILED template std::unique_ptr<TrainingCalls<Space>> make_engine<Space>(                             \
      AnyCommunicator<Space>, const ParameterList<Space>&, const AnyOptimizer<Space>&, const TrainingPolicies&, \
      const DataParallelOptions&, const std::source_location&);                                                 \
  DISTX_COMPILED template void join_mesh<Space>(TrainingCalls<Space>&, TrainingMesh<Space>);                    \
  DISTX_COMPILED template std::uint64_t replicate<Space>(TrainingCalls<Space>&, KeptReplicas<Space>&,           \
                                                         const std::source_location&);                          \
  DISTX_COMPILED template class EngineOwner<Space>;                                                             \
  DISTX_COMPILED template class Evaluation<Space>;                                                              \
  DISTX_COMPILED template AnyOptimizer<Space> any_optimizer<Space>(const SGD&);                                 \
  DISTX_COMPILED template AnyOptimizer<Space> any_optimizer<Space>(const AdamW&);                               \
  }                                                                                                             \
  static_assert(true)
// NOLINTEND(bugprone-macro-parentheses)

DISTX_COMPILED_TRAINING(Host);

namespace distx::inline DISTX_ABI::detail {

DISTX_COMPILED template AnyOptimizer<Host> any_optimizer<Host>(const LAMB&);
DISTX_COMPILED template AnyOptimizer<Host> any_optimizer<Host>(const Muon&);
DISTX_COMPILED template AnyOptimizer<Host> any_optimizer<Host>(const Mixed<Muon, AdamW>&);

}  // namespace distx::inline DISTX_ABI::detail
