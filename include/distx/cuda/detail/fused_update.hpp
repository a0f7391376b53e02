// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <array>
#include <source_location>
#include <span>
#include <string>

#include "distx/cuda/detail/device_step.hpp"
#include "distx/optim/optimizer.hpp"

namespace distx {

namespace cuda::detail {

/// One of the arrays that a single launch updates, with its own step.
///
/// If Low is T, weights of T are updated by gradients of T. If Low is bfloat16 or float16 and T is float, `weight` has
/// the master weights of `low`, which receives them rounded, and `gradient` has low's type.
template <class Optimizer, class T, class Low = T>
struct UpdatePiece {
  Step step;
  Span<T, Cuda> weight;
  Span<const Low, Cuda> gradient;
  std::array<Span<accumulator_t<T>, Cuda>, Optimizer::states> state;
  Span<Low, Cuda> low{};  ///< empty if Low is T
};

/// The factor that gradients are multiplied by before they are used: `*there` if `there` is not null, else `value`. If
/// it is NaN, the update is skipped.
struct GradientFactor {
  double value = 1;
  const double* there = nullptr;  ///< in the GPU's memory
};

/// Enqueues an optimizer's update of pieces; if `numbers` is not null, of one piece, by that step.
template <class Optimizer, class T, class Low>
using UpdateKernel = void(CudaStreamRef, const Optimizer&, std::span<const UpdatePiece<Optimizer, T, Low>>,
                          const GradientFactor&, const StepNumbers* numbers);

/// Filled by `register_optimizer<Optimizer>()` of <distx/cuda_kernels.cuh>.
template <class Optimizer, class T, class Low>
inline constinit UpdateKernel<Optimizer, T, Low>* update_slot = nullptr;

template <class Optimizer, class T, class Low>
[[noreturn]] void no_update_kernel() {
  const std::string here = std::source_location::current().function_name();  // has the types' names
  no_kernel("fused_update",
            "; for a custom optimizer write there: const bool registered = "
            "distx::cuda::register_optimizer<YourOptimizer>(); requested: " +
                here.substr(std::min(here.find('['), here.size())));
}

template <class Optimizer, class T, class Low>
void update(CudaStreamRef stream, const Optimizer& optimizer, std::span<const UpdatePiece<Optimizer, T, Low>> pieces,
            const GradientFactor& factor, const StepNumbers* numbers) {
  static_assert(std::same_as<T, Low> || (std::same_as<T, float> && sizeof(Low) == 2),
                "distx::fused_update: master weights are float, of bfloat16 or float16");
  for (const auto& piece : pieces) {
    const auto check_size = [&](std::size_t size) {
      if (size != piece.weight.size()) distx::detail::lengths_differ(piece.weight.size(), size, "fused_update");
    };
    check_size(piece.gradient.size());
    if constexpr (!std::same_as<T, Low>) check_size(piece.low.size());
    for (const auto& state : piece.state) check_size(state.size());
  }
  if (std::all_of(pieces.begin(), pieces.end(), [](const auto& piece) { return piece.weight.empty(); })) return;
  const auto kernel = update_slot<Optimizer, T, Low>;
  if (kernel == nullptr) [[unlikely]]
    no_update_kernel<Optimizer, T, Low>();
  kernel(stream, optimizer, pieces, factor, numbers);
}

/// Enqueues the update of all pieces, in one launch for about 40 of them. None of the arrays overlap.
///
/// Each piece has the bits of `scale(stream, gradient, factor)` followed by `fused_update` of that piece; with masters,
/// of `cast` of the gradient to float, `scale`, `fused_update` and `cast` of the masters to Low.
/// @throws InvalidArgument if the lengths of a piece's arrays differ
template <ElementwiseOptimizer Optimizer, FloatingElement T, FloatingElement Low>
void fused_update(CudaStreamRef stream, const Optimizer& optimizer,
                  std::span<const UpdatePiece<Optimizer, T, Low>> pieces, const GradientFactor& factor = {}) {
  update(stream, optimizer, pieces, factor, nullptr);
}

}  // namespace cuda::detail

/// Enqueues one pass of the optimizer over `weight`, `gradient` and its state.
///
/// bfloat16 and float16 are computed in float, and their state is float. Each operation rounds by itself, so the bits
/// do not depend on how a parameter is partitioned. Numbers have the host's bits if the host's compiler does not fuse
/// products with sums; the payload of a NaN is not specified.
///
/// @param weight,gradient,state  arrays of one length in the current GPU's memory; none overlap
/// @throws InvalidArgument if the lengths differ
/// @throws Error if no kernel of the optimizer is linked in, see <distx/cuda_kernels.cuh>
template <ElementwiseOptimizer Optimizer, FloatingElement T>
void fused_update(CudaStreamRef stream, const Optimizer& optimizer, const Step& step, Span<T, Cuda> weight,
                  std::type_identity_t<Span<const T, Cuda>> gradient,
                  const std::array<Span<accumulator_t<T>, Cuda>, Optimizer::states>& state) {
  const cuda::detail::UpdatePiece<Optimizer, T> piece{step, weight, gradient, state};
  cuda::detail::update(stream, optimizer, std::span(&piece, 1), {}, nullptr);
}

/// The same, by a step that the kernel reads in the GPU's memory, after at least one `advance`. The GPU computes the
/// optimizer's coefficients, and its powers may differ from the host's in the last bits.
template <ElementwiseOptimizer Optimizer, FloatingElement T>
void fused_update(CudaStreamRef stream, const Optimizer& optimizer, const DeviceStep& step, Span<T, Cuda> weight,
                  std::type_identity_t<Span<const T, Cuda>> gradient,
                  const std::array<Span<accumulator_t<T>, Cuda>, Optimizer::states>& state) {
  const cuda::detail::UpdatePiece<Optimizer, T> piece{Step{}, weight, gradient, state};
  cuda::detail::update(stream, optimizer, std::span(&piece, 1), {}, step.numbers());
}

}  // namespace distx
