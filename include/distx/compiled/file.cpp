// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Defines what file.hpp declares in programs that are compiled with -DDISTX_COMPILED=extern.
#undef DISTX_COMPILED
#define DISTX_COMPILED extern
#include <distx/connect/file/definitions.hpp>
