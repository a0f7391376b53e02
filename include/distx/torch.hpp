// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// Distributed training of LibTorch's modules, and collectives on its tensors. LibTorch's headers are included from here
// and from torch_cuda.hpp only; names are in the namespace `distx_torch`.
#include "distx/comm/best_communicator.hpp"
#include "distx/torch/data_parallel.hpp"
#include "distx/torch/recomputed.hpp"
#include "distx/torch/sharded.hpp"
#include "distx/torch/tensor.hpp"
#include "distx/training.hpp"
