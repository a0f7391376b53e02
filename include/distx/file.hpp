// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// Ranks that find each other in a shared folder; it needs the headers of a POSIX system.
#include "distx/comm.hpp"
#include "distx/connect/file/file_connector.hpp"
#include "distx/connect/file/launcher.hpp"
#include "distx/connect/file/spawn_processes.hpp"
#ifndef DISTX_COMPILED
#include "distx/connect/file/definitions.hpp"
#endif
