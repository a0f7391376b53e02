// expect: Reproducible says how gradients of micro-batches are added; keep it once, and remove Accumulate
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

#ifdef DISTX_POSITIVE
using Training = distx::DataParallel<distx::ZeRO<1>, distx::Reproducible<8>>;
#else
using Training = distx::DataParallel<distx::ZeRO<1>, distx::Reproducible<8>, distx::Accumulate<distx::Sharded>>;
#endif

void train(Training& training) { training.step({.learning_rate = 1}); }
