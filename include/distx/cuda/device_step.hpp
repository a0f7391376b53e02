// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <optional>

#include "distx/cuda/detail/operations.hpp"
#include "distx/optim/optimizer.hpp"

namespace distx::inline DISTX_ABI {

namespace cuda::detail {

/// A step's numbers in the GPU's memory.
struct StepNumbers {
  double learning_rate = 0;
  double weight_decay = 0;
  std::uint64_t number = 0;
  bool sets_decay = false;  ///< whether `weight_decay` replaces the optimizer's
};

/// A step in the GPU's memory, with the coefficients that an optimizer has for it.
template <class Optimizer>
struct StepMemory {
  StepNumbers numbers;
  distx::detail::coefficients_t<Optimizer, float> of_float;
  distx::detail::coefficients_t<Optimizer, double> of_double;
};

/// The number that a kernel changes.
enum class StepChange { learning_rate, weight_decay, number, next };

template <class Optimizer>
using ChangeStepKernel = void(CudaStreamRef, StepMemory<Optimizer>*, StepChange, double value, const Optimizer&);

/// Filled by `register_optimizer<Optimizer>()` of <distx/cuda_kernels.cuh>.
template <class Optimizer>
inline constinit ChangeStepKernel<Optimizer>* change_step_slot = nullptr;

}  // namespace cuda::detail

/// An optimizer and its `Step` in a GPU's memory, where kernels read it: a captured update can be replayed with another
/// step number and learning rate.
///
/// Each change is enqueued on the given stream, by a kernel of <distx/cuda_kernels.cuh> that also computes the
/// optimizer's coefficients, which `fused_update` reads. The object must outlive all enqueued and captured work that
/// uses it. Move-only.
template <ElementwiseOptimizer Optimizer>
class DeviceStep {
 public:
  /// Starts before the first step: call `advance` before each update.
  /// @param weight_decay  replaces the optimizer's, if given
  /// @param number  the number of steps already taken
  explicit DeviceStep(const Optimizer& optimizer, double learning_rate = 0, std::optional<double> weight_decay = {},
                      std::uint64_t number = 0)
      : optimizer_(optimizer), memory_(1) {
    const cuda::detail::StepNumbers first{learning_rate, weight_decay.value_or(0), number, weight_decay.has_value()};
    copy(CudaStreamRef(), numbers(), Span<const cuda::detail::StepNumbers>(&first, 1));
    CudaStreamRef().synchronize();  // non-blocking streams do not wait for the legacy default stream
  }

  /// Enqueues a change of the learning rate.
  void set_learning_rate(CudaStreamRef stream, double value) {
    change(stream, cuda::detail::StepChange::learning_rate, value);
  }
  /// Enqueues a change of the weight decay, which replaces the optimizer's.
  void set_weight_decay(CudaStreamRef stream, double value) {
    change(stream, cuda::detail::StepChange::weight_decay, value);
  }
  /// Enqueues a change of the number of steps taken, to resume a training.
  void set_number(CudaStreamRef stream, std::uint64_t number) {
    change(stream, cuda::detail::StepChange::number, static_cast<double>(number));
  }
  /// Enqueues the transition to the next step.
  void advance(CudaStreamRef stream) { change(stream, cuda::detail::StepChange::next, 0); }

  /// Returns the step, in stream order. Blocks the host; the stream must not be capturing.
  [[nodiscard]] Step read(CudaStreamRef stream) const {
    const auto now = cuda::detail::read<cuda::detail::StepNumbers>(stream, numbers());
    return {now.learning_rate, now.number, now.sets_decay ? std::optional(now.weight_decay) : std::nullopt};
  }
  [[nodiscard]] const Optimizer& optimizer() const noexcept { return optimizer_; }
  /// Returns the address at which kernels read the coefficients for weights that are accumulated in A.
  template <std::floating_point A>
  [[nodiscard]] const detail::coefficients_t<Optimizer, A>* coefficients() const noexcept {
    if constexpr (std::same_as<A, double>)
      return &memory_.data()->of_double;
    else
      return &memory_.data()->of_float;
  }

 private:
  [[nodiscard]] Span<cuda::detail::StepNumbers, Cuda> numbers() const noexcept { return {&memory_.data()->numbers, 1}; }
  void change(CudaStreamRef stream, cuda::detail::StepChange what, double value) {
    cuda::detail::kernel_in(cuda::detail::change_step_slot<Optimizer>, "DeviceStep")(stream, memory_.data(), what,
                                                                                     value, optimizer_);
  }

  Optimizer optimizer_;
  Buffer<cuda::detail::StepMemory<Optimizer>, Cuda> memory_;
};

}  // namespace distx::inline DISTX_ABI
