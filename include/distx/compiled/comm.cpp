// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Defines what comm.hpp and threads.hpp declare in programs that are compiled with -DDISTX_COMPILED=extern.
#undef DISTX_COMPILED
#define DISTX_COMPILED
#include <distx/comm/detail/serial_calls.hpp>
#include <distx/comm/detail/threads_calls.hpp>
#include <distx/comm/hierarchical/hosts_calls.hpp>
#include <distx/comm/runtime/flight_log_calls.hpp>
#include <distx/comm/runtime/progress_thread_calls.hpp>
#include <distx/connect/control/connector_calls.hpp>
#include <distx/connect/detail/connect_calls.hpp>
#include <distx/connect/detail/local_failure_channel_calls.hpp>
#include <distx/connect/detail/spawn_calls.hpp>
#include <distx/observe/detail/ledger_calls.hpp>

// Last: clang instantiates only what has been defined before.
#include <distx/comm.hpp>
#include <distx/threads.hpp>
