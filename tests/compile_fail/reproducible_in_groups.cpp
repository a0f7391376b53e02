// expect: Reproducible does not support Hybrid, which adds gradients in groups of ranks first; remove one of them
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

#ifdef DISTX_POSITIVE
using Training = distx::DataParallel<distx::ZeRO<1>, distx::Reproducible<8>, distx::Replicate>;
#else
using Training = distx::DataParallel<distx::ZeRO<1>, distx::Reproducible<8>, distx::Hybrid>;
#endif

void train(Training& training) { training.step({.learning_rate = 1}); }
