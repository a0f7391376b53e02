// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// What most programs need; it requires only the standard library. Vendors, wrapper communicators (comm/decorators/),
// operations on tensors (tensor/ops.hpp), `MeshParallel` and its layers (parallel/) have headers of their own.
#include "distx/comm.hpp"
#include "distx/comm/best_communicator.hpp"
#include "distx/comm/hierarchical.hpp"
#include "distx/tensor.hpp"
#include "distx/threads.hpp"
#include "distx/training.hpp"
