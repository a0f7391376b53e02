// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// Ranks that are threads of this process, and communicators of one rank.
#include "distx/comm.hpp"
#include "distx/comm/serial.hpp"
#include "distx/comm/threads.hpp"
#include "distx/connect/self.hpp"
#include "distx/connect/spawn.hpp"
#ifdef DISTX_COMPILED
#include "distx/comm/detail/compiled_threads.hpp"
#else
#include "distx/comm/detail/definitions.hpp"
#include "distx/comm/detail/threads_definitions.hpp"
#endif
