// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The kernels of benchmarks/optimizer_cuda.cpp.
#include <distx/cuda_kernels.cuh>
