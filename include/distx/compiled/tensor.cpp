// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Defines what tensor.hpp declares in programs that are compiled with -DDISTX_COMPILED=extern.
#undef DISTX_COMPILED
#define DISTX_COMPILED extern
#include <distx/comm.hpp>
#undef DISTX_COMPILED
#define DISTX_COMPILED
#include <distx/tensor/detail/redistribution_plan_definitions.hpp>
