// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <optional>

#include "distx/cuda/detail/operations.hpp"
#include "distx/optim/step.hpp"

namespace distx {

/// A `Step` in a GPU's memory, where kernels read it: a captured update can be replayed with another step number and
/// learning rate.
///
/// Each change is enqueued on the given stream, by a kernel of <distx/cuda_kernels.cuh>. The object must outlive all
/// enqueued and captured work that uses it. Move-only.
class DeviceStep {
 public:
  /// Starts before the first step: call `advance` before each update.
  /// @param weight_decay  replaces the optimizer's, if given
  /// @param number  the number of steps already taken
  explicit DeviceStep(double learning_rate = 0, std::optional<double> weight_decay = {}, std::uint64_t number = 0)
      : numbers_(1, uninitialized) {
    const cuda::detail::StepNumbers first{learning_rate, weight_decay.value_or(0), number, weight_decay.has_value()};
    copy(CudaStreamRef(), numbers_.span(), Span<const cuda::detail::StepNumbers>(&first, 1));
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
    const auto now = cuda::detail::read<cuda::detail::StepNumbers>(stream, numbers_);
    return {now.learning_rate, now.number, now.sets_decay ? std::optional(now.weight_decay) : std::nullopt};
  }
  /// Returns the address that kernels read.
  [[nodiscard]] const cuda::detail::StepNumbers* numbers() const noexcept { return numbers_.data(); }

 private:
  void change(CudaStreamRef stream, cuda::detail::StepChange what, double value) {
    cuda::detail::kernel_in(cuda::detail::kernels.change_step, "DeviceStep")(stream, numbers_.data(), what, value);
  }

  Buffer<cuda::detail::StepNumbers, Cuda> numbers_;
};

}  // namespace distx
