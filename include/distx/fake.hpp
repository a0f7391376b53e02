// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// One rank of a job of any size, in one process, that moves nothing.
#include "distx/comm/fake.hpp"
#include "distx/threads.hpp"
