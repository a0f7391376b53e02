// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What nvcc compiles of train_gpt_cuda.
#include <distx/cuda_kernels.cuh>
