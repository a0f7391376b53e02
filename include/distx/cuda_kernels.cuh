// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#if !defined(__CUDACC__)
#error distx/cuda_kernels.cuh has the kernels, which only nvcc compiles: include it in a .cu file of the program, and \
distx/cuda.hpp everywhere else
#endif
#include "distx/cuda/kernels/boxes.cuh"
#include "distx/cuda/kernels/elements.cuh"
#include "distx/cuda/kernels/operations.cuh"
#include "distx/cuda/kernels/pieces.cuh"
#include "distx/cuda/kernels/reductions.cuh"
#include "distx/cuda/kernels/tensors.cuh"
#include "distx/cuda/kernels/update.cuh"
#include "distx/optim/adamw.hpp"
#include "distx/optim/sgd.hpp"

namespace distx::inline DISTX_ABI::cuda::detail {

/// Sets the pointers to the kernels before main.
inline const bool kernels_are_here = [] {
  kernels = {.fill = &enqueue_fill,
             .cast = &enqueue_cast,
             .scale = &enqueue_scale,
             .add = &enqueue_add,
             .mix = &enqueue_mix,
             .sum_of_squares = &enqueue_sum_of_squares,
             .largest_magnitude = &enqueue_largest_magnitude,
             .fixed_point_squares = &enqueue_fixed_point_squares,
             .squares_of_each = &enqueue_squares_of_each,
             .clip_factor = &enqueue_clip_factor,
             .load = &load_listed_kernels};
  return register_optimizer<SGD>() && register_optimizer<AdamW>();
}();

}  // namespace distx::inline DISTX_ABI::cuda::detail
