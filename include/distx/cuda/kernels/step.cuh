// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/cuda/detail/kernels.hpp"
#include "distx/cuda/kernels/launch.cuh"
#include "distx/optim/step.hpp"

namespace distx::cuda::detail {

static __global__ void change_step_kernel(StepNumbers* step, StepChange change, double value) {
  if (threadIdx.x != 0) return;
  switch (change) {
    case StepChange::learning_rate:
      step->learning_rate = value;
      break;
    case StepChange::weight_decay:
      step->weight_decay = value;
      step->sets_decay = true;
      break;
    case StepChange::number:
      step->number = static_cast<std::uint64_t>(value);
      break;
    case StepChange::next:
      ++step->number;
      break;
  }
}

inline void enqueue_change_step(CudaStreamRef stream, StepNumbers* step, StepChange change, double value) {
  enqueue<&change_step_kernel>(stream, 1, 1, step, change, value);
}

}  // namespace distx::cuda::detail
