// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// Includes the parts of distx that most programs need; requires only the standard library. Vendor backends, wrapper
// communicators (comm/decorators/), operations on tensors (tensor/ops.hpp), and `MeshParallel` with its layers
// (parallel/) have separate headers.
#include "distx/comm.hpp"
#include "distx/comm/best_communicator.hpp"
#include "distx/comm/hierarchical.hpp"
#include "distx/tensor.hpp"
#include "distx/threads.hpp"
#include "distx/training.hpp"
