// expect: distx::MeshParallel: Reproducible supports DataParallel only
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/optim/sgd.hpp"
#include "distx/parallel/mesh_parallel.hpp"

struct Data {};
#ifdef DISTX_POSITIVE
using Training = distx::MeshParallel<Data, distx::ZeRO<1>>;
#else
using Training = distx::MeshParallel<Data, distx::ZeRO<1>, distx::Reproducible<8>>;
#endif

void train(Training& training) { training.step({.learning_rate = 1}); }
