// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#if !__has_include(<pmix.h>)
#error distx/pmix.hpp needs PMIx: install it (on Debian and Ubuntu: libpmix-dev) or leave this header out
#endif
// Ranks that a launcher with PMIx starts, such as Open MPI's mpirun, in programs that do not use MPI.
#include "distx/comm.hpp"
#include "distx/pmix/detail/launcher.hpp"
#ifndef DISTX_COMPILED
#include "distx/connect/tcp/definitions.hpp"
#endif
