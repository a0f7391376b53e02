// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// Ranks that find each other over TCP, started by torchrun, srun, distx-run or by hand; it needs the headers of Linux.
#include "distx/comm.hpp"
#include "distx/connect/tcp/launcher.hpp"
#include "distx/connect/tcp/tcp_connector.hpp"
#ifndef DISTX_COMPILED
#include "distx/connect/tcp/definitions.hpp"
#endif
