// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Defines what mpi.hpp declares in programs that are compiled with -DDISTX_COMPILED=extern.
#undef DISTX_COMPILED
#define DISTX_COMPILED extern
#include <distx/comm.hpp>
#undef DISTX_COMPILED
#define DISTX_COMPILED
#include <distx/mpi/detail/definitions.hpp>

// Last: clang instantiates only what has been defined before.
#include <distx/mpi.hpp>
