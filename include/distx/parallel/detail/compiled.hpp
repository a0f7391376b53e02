// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// The templates of parallel/ in the compiled part of the library. DISTX_COMPILED is `extern` where they are declared,
// and nothing where they are defined.
#include "distx/optim/adamw.hpp"
#include "distx/optim/lamb.hpp"
#include "distx/optim/mixed.hpp"
#include "distx/optim/muon.hpp"
#include "distx/optim/sgd.hpp"
#include "distx/parallel/data_parallel.hpp"
#include "distx/parallel/exponential_average.hpp"

namespace distx {

DISTX_COMPILED template class ParameterList<Host>;
DISTX_COMPILED template class Unsharded<Host>;
DISTX_COMPILED template class ExponentialAverage<Host>;

}  // namespace distx

namespace distx::detail {

DISTX_COMPILED template std::unique_ptr<TrainingCalls<Host>> make_engine<Host>(
    AnyCommunicator<Host>, std::vector<ParameterEntry<Host>>, const AnyOptimizer<Host>&, const TrainingPolicies&,
    const DataParallelOptions&, const std::source_location&);
DISTX_COMPILED template void join_mesh<Host>(TrainingCalls<Host>&, MeshPart<Host>);
DISTX_COMPILED template std::uint64_t replicate<Host>(TrainingCalls<Host>&, KeptReplicas<Host>&,
                                                      const std::source_location&);
DISTX_COMPILED template void take_replicas<Host>(TrainingCalls<Host>&, KeptReplicas<Host>&);
DISTX_COMPILED template class EngineOwner<Host>;
DISTX_COMPILED template class Evaluation<Host>;
DISTX_COMPILED template AnyOptimizer<Host> any_optimizer<Host>(const SGD&);
DISTX_COMPILED template AnyOptimizer<Host> any_optimizer<Host>(const AdamW&);
DISTX_COMPILED template AnyOptimizer<Host> any_optimizer<Host>(const LAMB&);
DISTX_COMPILED template AnyOptimizer<Host> any_optimizer<Host>(const Muon&);
DISTX_COMPILED template AnyOptimizer<Host> any_optimizer<Host>(const Mixed<Muon, AdamW>&);

}  // namespace distx::detail
