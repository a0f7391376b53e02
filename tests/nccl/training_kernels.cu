// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The one file of the tests of training that nvcc compiles.
#include <distx/cuda_kernels.cuh>
