// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The kernels of the benchmarks on a GPU.
#include <distx/cuda_kernels.cuh>
