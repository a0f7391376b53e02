// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Defines what training.hpp declares in programs that are compiled with -DDISTX_COMPILED=extern.
#undef DISTX_COMPILED
#define DISTX_COMPILED extern
#include <distx/comm.hpp>
#undef DISTX_COMPILED
#define DISTX_COMPILED
#include <distx/data/detail/permutation_definitions.hpp>
#include <distx/parallel/detail/definitions.hpp>
#include <distx/parallel/detail/parameter_options_definitions.hpp>

// Last: clang instantiates only what has been defined before.
#include <distx/training.hpp>
