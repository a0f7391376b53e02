// expect: the argument of Compress must be bfloat16, float16 or a GradientHook
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

#ifdef DISTX_POSITIVE
using Training = distx::DataParallel<distx::Compress<distx::bfloat16>>;
#else
using Training = distx::DataParallel<distx::Compress<float>>;
#endif

void train(Training& training) { training.step({.learning_rate = 1}); }
