// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// The definitions of what every communicator uses: see core/version.hpp.
#include "distx/comm/hierarchical/hosts_definitions.hpp"
#include "distx/comm/runtime/flight_log_definitions.hpp"
#include "distx/comm/runtime/progress_thread_definitions.hpp"
