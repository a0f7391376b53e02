// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// Tensors of NumPy, PyTorch, JAX and others in their own memory, and distx's memory as theirs, by DLPack.
#include "distx/dlpack/exchange.hpp"
