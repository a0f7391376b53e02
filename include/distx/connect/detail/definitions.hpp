// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// The definitions of what comm.hpp declares: see core/version.hpp.
#include "distx/connect/detail/connect_definitions.hpp"
#include "distx/connect/detail/local_failure_channel_definitions.hpp"
