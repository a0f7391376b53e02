// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Found instead of CUDA's header of this name where a compiler for the host compiles kernels: CUDA's own, and what nvcc
// knows without a header. A kernel is a function, launched by cudaLaunchKernelEx; its threads run one after the other,
// and change over where they wait for one another. There is no `extern __shared__`, and nothing of cooperative groups.
#pragma once
#pragma GCC system_header

#define cudaLaunchKernelEx cuda_launch_kernel_of_cuda
#include_next <cuda_runtime.h>
#undef cudaLaunchKernelEx
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "../kernel.hpp"

#ifndef __CUDACC__
#define __CUDACC__ 1  // from here on: CUDA's headers above are the host's
#endif
