// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/cuda/device_step.hpp"
#include "distx/cuda/kernels/launch.cuh"

namespace distx::inline DISTX_ABI::cuda::detail {

/// Changes a step, and computes the optimizer's coefficients for the kernels that update with it: by one thread, once
/// per change.
template <class Optimizer>
__global__ void __launch_bounds__(32)
    change_step_kernel(StepMemory<Optimizer>* memory, StepChange change, double value, Optimizer optimizer) {
  if (threadIdx.x != 0) return;
  StepNumbers& numbers = memory->numbers;
  switch (change) {
    case StepChange::learning_rate:
      numbers.learning_rate = value;
      break;
    case StepChange::weight_decay:
      numbers.weight_decay = value;
      numbers.sets_decay = true;
      break;
    case StepChange::number:
      numbers.number = static_cast<std::uint64_t>(value);
      break;
    case StepChange::next:
      ++numbers.number;
      break;
  }
  Step step;
  step.learning_rate = numbers.learning_rate;
  step.number = numbers.number;
  if (numbers.sets_decay) step.weight_decay = numbers.weight_decay;
  memory->of_float = optimizer.template coefficients<float>(step);
  memory->of_double = optimizer.template coefficients<double>(step);
}

template <class Optimizer>
void enqueue_change_step(CudaStreamRef stream, StepMemory<Optimizer>* memory, StepChange change, double value,
                         const Optimizer& optimizer) {
  enqueue<&change_step_kernel<Optimizer>>(stream, 1, 32, memory, change, value, optimizer);
}

}  // namespace distx::inline DISTX_ABI::cuda::detail
