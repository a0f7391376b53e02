// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#if !__has_include(<cublas_v2.h>)
#error distx/cuda_blas.hpp needs the headers of cuBLAS, a part of the CUDA Toolkit: install them and name their \
folder to the compiler, or leave this header out
#endif
#include "distx/cuda.hpp"
#include "distx/cuda/blas.hpp"
