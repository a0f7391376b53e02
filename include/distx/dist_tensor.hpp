// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// Tensors that are spread over a mesh, beside what distx.hpp has: needs the standard library only.
#include "distx/tensor/dist_tensor.hpp"
#include "distx/tensor/distribute.hpp"
#include "distx/tensor/make_tensor.hpp"
#include "distx/tensor/redistribute.hpp"
