// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#if !__has_include(<cuda_runtime_api.h>) || !__has_include(<nccl.h>)
#error distx/nccl.hpp needs the headers of the CUDA Toolkit and of NCCL: install both and add their include folders to \
the search path of the compiler, or leave this header out
#endif
#include "distx/comm.hpp"
#include "distx/cuda.hpp"
#include "distx/nccl/communicator.hpp"
#include "distx/nccl/group.hpp"
#include "distx/nccl/premultiplied_sum.hpp"
#ifdef DISTX_COMPILED
#include "distx/nccl/detail/compiled.hpp"
#else
#include "distx/comm/detail/definitions.hpp"
#include "distx/nccl/detail/definitions.hpp"
#endif
