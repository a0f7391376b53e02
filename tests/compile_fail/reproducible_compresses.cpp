// expect: Reproducible does not support Compress, whose rounding depends on the number of ranks; remove one of them
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

#ifdef DISTX_POSITIVE
using Training = distx::DataParallel<distx::Reproducible<8>>;
#else
using Training = distx::DataParallel<distx::Reproducible<8>, distx::Compress<distx::bfloat16>>;
#endif

void train(Training& training) { training.step({.learning_rate = 1}); }
