// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <optional>

#include "distx/cuda/detail/operations.hpp"
#include "distx/optim/step.hpp"

namespace distx {

/// What an optimizer is told about a step, in a GPU's memory: kernels read it there, so that a step can be captured in
/// a graph and replayed, and another learning rate does not mean another graph.
///
/// Every change is work enqueued on the stream given, by a kernel: needs <distx/cuda_kernels.cuh> in one file of the
/// program. It must outlive what was enqueued or captured. Move-only.
class DeviceStep {
 public:
  /// Before its first step: `advance` comes before each update.
  /// @param weight_decay instead of the optimizer's, where it is given
  explicit DeviceStep(double learning_rate = 0, std::optional<double> weight_decay = {}, std::uint64_t number = 0)
      : numbers_(1, uninitialized) {
    const cuda::detail::StepNumbers first{learning_rate, weight_decay.value_or(0), number, weight_decay.has_value()};
    copy(CudaStreamRef(), numbers_.span(), Span<const cuda::detail::StepNumbers>(&first, 1));
    CudaStreamRef().synchronize();  // the legacy default stream orders nothing for streams that do not block
  }

  void set_learning_rate(CudaStreamRef stream, double value) {
    change(stream, cuda::detail::StepChange::learning_rate, value);
  }
  void set_weight_decay(CudaStreamRef stream, double value) {
    change(stream, cuda::detail::StepChange::weight_decay, value);
  }
  /// As after so many steps: when a training goes on.
  void set_number(CudaStreamRef stream, std::uint64_t number) {
    change(stream, cuda::detail::StepChange::number, static_cast<double>(number));
  }
  /// On to the next step.
  void advance(CudaStreamRef stream) { change(stream, cuda::detail::StepChange::next, 0); }

  /// What the stream will have there. Blocks the host; not while capturing.
  [[nodiscard]] Step read(CudaStreamRef stream) const {
    const auto now = cuda::detail::read<cuda::detail::StepNumbers>(stream, numbers_);
    return {now.learning_rate, now.number, now.sets_decay ? std::optional(now.weight_decay) : std::nullopt};
  }
  [[nodiscard]] const cuda::detail::StepNumbers* numbers() const noexcept { return numbers_.data(); }

 private:
  void change(CudaStreamRef stream, cuda::detail::StepChange what, double value) {
    cuda::detail::kernel_in(cuda::detail::kernels.change_step, "DeviceStep")(stream, numbers_.data(), what, value);
  }

  Buffer<cuda::detail::StepNumbers, Cuda> numbers_;
};

}  // namespace distx
