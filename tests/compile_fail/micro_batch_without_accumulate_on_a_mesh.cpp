// expect: distx: micro_batch needs the policy Accumulate<Local>, Accumulate<Sharded> or Reproducible<V>
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/parallel/mesh_parallel.hpp"

struct Data;

#ifdef DISTX_POSITIVE
using Training = distx::MeshParallel<Data, distx::ZeRO<1>, distx::Accumulate<distx::Local>>;
#else
using Training = distx::MeshParallel<Data, distx::ZeRO<1>>;
#endif

void train(Training& training) { const auto batch = training.micro_batch({.index = 0, .count = 1}); }
