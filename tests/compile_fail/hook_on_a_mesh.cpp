// expect: distx::MeshParallel: a GradientHook supports DataParallel only
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/optim/sgd.hpp"
#include "distx/parallel/hooks/power_sgd.hpp"
#include "distx/parallel/mesh_parallel.hpp"

struct Data {};
#ifdef DISTX_POSITIVE
using Training = distx::MeshParallel<Data, distx::Compress<distx::bfloat16>>;
#else
using Training = distx::MeshParallel<Data, distx::Compress<distx::hooks::PowerSGD<4>>>;
#endif

void train(Training& training) { training.step({.learning_rate = 1}); }
