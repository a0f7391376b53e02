// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The one file of the tests' program that nvcc compiles.
#include <distx/cuda_kernels.cuh>

#include "cuda/lion.hpp"

namespace {

const bool registered = distx::register_optimizer<Lion>() && distx::register_optimizer<PlainDescent>();

}  // namespace
