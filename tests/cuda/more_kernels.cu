// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A second file of the tests' programs that nvcc compiles and that registers something.
#include <distx/cuda/kernels/elements.cuh>

#include "cuda/tensor_kernels.hpp"

namespace {

[[maybe_unused]] const bool registered = distx::cuda::register_function<tensor_kernels::Square, float, float>();

}  // namespace
