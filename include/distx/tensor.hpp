// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// Tensors on a mesh of ranks and their redistribution. Operations on tensors are in tensor/ops.hpp.
#include "distx/comm.hpp"
#include "distx/tensor/along_axis.hpp"
#include "distx/tensor/along_dimension.hpp"
#include "distx/tensor/dist_tensor.hpp"
#include "distx/tensor/distribute.hpp"
#include "distx/tensor/make_tensor.hpp"
#include "distx/tensor/mesh.hpp"
#include "distx/tensor/print.hpp"
#include "distx/tensor/redistribute.hpp"
#include "distx/tensor/redistribution_cost.hpp"
#ifndef DISTX_COMPILED
#include "distx/tensor/detail/redistribution_plan_definitions.hpp"
#endif
