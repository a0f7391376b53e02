// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// The definitions of what checkpoint.hpp declares: see core/version.hpp.
#include "distx/checkpoint/detail/files_definitions.hpp"
#include "distx/checkpoint/detail/load_weights_definitions.hpp"
#include "distx/checkpoint/detail/training_definitions.hpp"
