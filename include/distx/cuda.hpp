// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#if !__has_include(<cuda_runtime_api.h>)
#error distx/cuda.hpp needs the headers of the CUDA Toolkit: install it and name its include folder to the compiler, \
or leave this header out
#endif
#include "distx/cuda/buffer.hpp"
#include "distx/cuda/detail/copy.hpp"
#include "distx/cuda/detail/copy_box.hpp"
#include "distx/cuda/detail/tensor_kernels.hpp"
#include "distx/cuda/elements.hpp"
#include "distx/cuda/fixed_point.hpp"
#include "distx/cuda/fused_update.hpp"
#include "distx/cuda/pick_device.hpp"
#include "distx/cuda/upload.hpp"
#ifdef DISTX_COMPILED
#include "distx/cuda/detail/compiled.hpp"
#endif
