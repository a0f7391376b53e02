// expect: announce_batch contradicts Reproducible
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

#ifdef DISTX_POSITIVE
using Training = distx::DataParallel<distx::ZeRO<1>>;
#else
using Training = distx::DataParallel<distx::ZeRO<1>, distx::Reproducible<8>>;
#endif

int announce(Training& training) { return training.announce_batch(true); }
