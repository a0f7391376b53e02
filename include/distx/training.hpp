// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// Data-parallel training: optimizers, `DataParallel` and its policies, samplers and loaders, statistics. `MeshParallel`
// and the layers that are sharded over a mesh have separate headers in parallel/.
#include "distx/comm.hpp"
#include "distx/data/data_loader.hpp"
#include "distx/data/distributed_sampler.hpp"
#include "distx/observe/chrome_trace.hpp"
#include "distx/observe/ledger.hpp"
#include "distx/observe/memory_ledger.hpp"
#include "distx/observe/timeline.hpp"
#include "distx/optim/adamw.hpp"
#include "distx/optim/lamb.hpp"
#include "distx/optim/mixed.hpp"
#include "distx/optim/muon.hpp"
#include "distx/optim/no_optimizer.hpp"
#include "distx/optim/schedule.hpp"
#include "distx/optim/sgd.hpp"
#include "distx/parallel/data_parallel.hpp"
#include "distx/parallel/exponential_average.hpp"
#include "distx/parallel/local_training.hpp"
#include "distx/parallel/parameter.hpp"
#include "distx/parallel/parameter_ref.hpp"
#include "distx/parallel/plan.hpp"
#ifdef DISTX_COMPILED
#include "distx/parallel/detail/compiled.hpp"
#else
#include "distx/data/detail/permutation_definitions.hpp"
#include "distx/parallel/detail/definitions.hpp"
#include "distx/parallel/detail/parameter_options_definitions.hpp"
#endif
