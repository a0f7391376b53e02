// expect: the policies contain Compress twice; keep one
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

#ifdef DISTX_POSITIVE
using Training = distx::DataParallel<distx::Compress<distx::bfloat16>>;
#else
using Training = distx::DataParallel<distx::Compress<distx::bfloat16>, distx::Compress<distx::float16>>;
#endif

void train(Training& training) { training.step({.learning_rate = 1}); }
