// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// The definitions of what training.hpp declares, in any memory space: see core/version.hpp.
#include "distx/parallel/detail/engine/exponential_average_definitions.hpp"
#include "distx/parallel/detail/engine/training_engine_definitions.hpp"
