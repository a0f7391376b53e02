// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <array>
#include <source_location>
#include <string>

#include "distx/cuda/detail/device_step.hpp"
#include "distx/optim/optimizer.hpp"

namespace distx {

namespace cuda::detail {

/// An optimizer's kernels for weights of T; pointers to elements of GPU memory. `numbers` is null where `step` counts.
template <class Optimizer, class T>
using update_kernel = void (*)(CudaStreamRef, const Optimizer&, const Step& step, const StepNumbers* numbers, T* weight,
                               const T* gradient, const std::array<accumulator_t<T>*, Optimizer::states>& state,
                               std::size_t count);

/// Filled by `register_optimizer<Optimizer>()` of <distx/cuda_kernels.cuh>.
template <class Optimizer, class T>
inline constinit update_kernel<Optimizer, T> update_slot = nullptr;

template <class Optimizer, class T>
[[noreturn]] void no_update_kernel() {
  const std::string here = std::source_location::current().function_name();  // the one place that knows the type's name
  no_kernel("fused_update",
            "; for an optimizer of your own write there: const bool registered = "
            "distx::register_optimizer<YourOptimizer>(); asked for " +
                here.substr(std::min(here.find('['), here.size())));
}

template <class Optimizer, class T>
void update(CudaStreamRef stream, const Optimizer& optimizer, const Step& step, const StepNumbers* numbers,
            Span<T, Cuda> weight, Span<const T, Cuda> gradient,
            const std::array<Span<accumulator_t<T>, Cuda>, Optimizer::states>& state) {
  if (weight.size() != gradient.size()) distx::detail::lengths_differ(weight.size(), gradient.size(), "fused_update");
  std::array<accumulator_t<T>*, Optimizer::states> states{};
  for (std::size_t s = 0; s < states.size(); ++s) {
    if (state[s].size() != weight.size()) distx::detail::lengths_differ(weight.size(), state[s].size(), "fused_update");
    states[s] = state[s].data();
  }
  if (weight.empty()) return;
  const auto kernel = update_slot<Optimizer, T>;
  if (kernel == nullptr) [[unlikely]]
    no_update_kernel<Optimizer, T>();
  kernel(stream, optimizer, step, numbers, weight.data(), gradient.data(), states, weight.size());
}

}  // namespace cuda::detail

/// One pass of the optimizer over `weight`, `gradient` and its state, all of one length and none overlapping.
///
/// bfloat16 and float16 are computed and keep their state in float. Each operation rounds by itself: the bits do not
/// depend on where a parameter is cut, and are the host's where its compiler fuses no product with a sum either.
/// @throws MismatchError for other lengths
template <ElementwiseOptimizer Optimizer, FloatingElement T>
void fused_update(CudaStreamRef stream, const Optimizer& optimizer, const Step& step, Span<T, Cuda> weight,
                  std::type_identity_t<Span<const T, Cuda>> gradient,
                  const std::array<Span<accumulator_t<T>, Cuda>, Optimizer::states>& state) {
  cuda::detail::update(stream, optimizer, step, nullptr, weight, gradient, state);
}

/// The same with a step that the kernel reads in the GPU's memory, where `advance` must have been called before. Its
/// coefficients are the GPU's, whose powers may differ from the host's in the last bits.
template <ElementwiseOptimizer Optimizer, FloatingElement T>
void fused_update(CudaStreamRef stream, const Optimizer& optimizer, const DeviceStep& step, Span<T, Cuda> weight,
                  std::type_identity_t<Span<const T, Cuda>> gradient,
                  const std::array<Span<accumulator_t<T>, Cuda>, Optimizer::states>& state) {
  cuda::detail::update(stream, optimizer, Step{}, step.numbers(), weight, gradient, state);
}

}  // namespace distx
