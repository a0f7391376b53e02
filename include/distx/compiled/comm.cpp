// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Defines what comm.hpp and threads.hpp declare in programs that are compiled with -DDISTX_COMPILED=extern.
#undef DISTX_COMPILED
#define DISTX_COMPILED
#include <distx/comm/detail/definitions.hpp>
#include <distx/comm/detail/threads_definitions.hpp>
#include <distx/comm/hierarchical/definitions.hpp>
#include <distx/connect/detail/definitions.hpp>
#include <distx/observe/detail/ledger_definitions.hpp>

// Last: clang instantiates only what has been defined before.
#include <distx/comm.hpp>
#include <distx/threads.hpp>
