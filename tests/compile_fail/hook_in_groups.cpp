// expect: a GradientHook does not support Hybrid, which averages in two groups of ranks; remove Hybrid
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"
#include "distx/parallel/hooks/power_sgd.hpp"

#ifdef DISTX_POSITIVE
using Training = distx::DataParallel<distx::ZeRO<1>, distx::Hybrid, distx::Compress<distx::bfloat16>>;
#else
using Training = distx::DataParallel<distx::ZeRO<1>, distx::Hybrid, distx::Compress<distx::hooks::PowerSGD<4>>>;
#endif

void train(Training& training) { training.step({.learning_rate = 1}); }
