// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// distx's kernels, which nvcc compiles once for all examples and benchmarks.
#include <distx/cuda_kernels.cuh>
