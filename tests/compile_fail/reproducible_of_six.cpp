// expect: distx::DataParallel: the number of virtual ranks of Reproducible must be a power of two, such as Reproducible<8>
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

#ifdef DISTX_POSITIVE
using Policy = distx::Reproducible<8>;
#else
using Policy = distx::Reproducible<6>;
#endif

void train(distx::DataParallel<Policy>& training) { training.step({.learning_rate = 1}); }
