// expect: distx: -ffast-math or a part of it changes the bits of results; add -fno-fast-math, or define DISTX_ACCEPT_FAST_MATH
// flags: -ffast-math
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifdef DISTX_POSITIVE
#define DISTX_ACCEPT_FAST_MATH
#endif
#include "distx/training.hpp"
