// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// Connectors, collectives and messages. Each communicator has a separate header: threads.hpp, mpi.hpp, shm.hpp, …;
// include `Hierarchical`, `best_communicator` and the wrapper communicators from comm/.
#include "distx/comm/any_communicator.hpp"
#include "distx/comm/groups.hpp"
#include "distx/comm/lists.hpp"
#include "distx/comm/memory.hpp"
#include "distx/comm/movement.hpp"
#include "distx/comm/ops.hpp"
#include "distx/comm/point_to_point.hpp"
#include "distx/comm/reductions.hpp"
#include "distx/connect/connect.hpp"
#include "distx/core/error.hpp"
#include "distx/core/span.hpp"
#include "distx/memory/buffer.hpp"
#include "distx/memory/operations.hpp"
#ifdef DISTX_COMPILED
#include "distx/comm/detail/compiled.hpp"
#else
#include "distx/connect/detail/definitions.hpp"
#include "distx/observe/detail/ledger_definitions.hpp"
#endif
