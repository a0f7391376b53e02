// expect: distx: the learning rate of the step is missing
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/parallel/data_parallel.hpp"

using Training = distx::DataParallel<distx::ZeRO<0>>;
#ifdef DISTX_POSITIVE
void train(Training& training) { training.step({.learning_rate = 0.1, .loss = 1}); }
#else
void train(Training& training) { training.step({.loss = 1}); }
#endif
