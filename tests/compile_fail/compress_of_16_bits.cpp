// expect: Compress is for parameters of float, those of Precision are of 16 bits already; remove Compress
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

#ifdef DISTX_POSITIVE
using Training = distx::DataParallel<distx::Compress<distx::bfloat16>>;
#else
using Training = distx::DataParallel<distx::Compress<distx::bfloat16>, distx::Precision<float>>;
#endif

void train(Training& training) { training.step({.learning_rate = 1}); }
