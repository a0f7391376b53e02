// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <source_location>
#include <span>
#include <string>

#include "distx/core/detail/plain_name.hpp"
#include "distx/cuda/device_step.hpp"
#include "distx/optim/detail/update_piece.hpp"

namespace distx::inline DISTX_ABI {

namespace cuda::detail {

template <class Optimizer, class T, class Low = T, class Gradient = Low>
using CudaPiece = distx::detail::UpdatePiece<Cuda, Optimizer, T, Low, Gradient>;
using distx::detail::GradientFactor;

/// Enqueues an optimizer's update of pieces. `coefficients`, if not null, are the optimizer's in the GPU's memory, of
/// each piece that is not empty.
template <class Optimizer, class T, class Low, class Gradient>
using UpdateKernel = void(CudaStreamRef, std::span<const CudaPiece<Optimizer, T, Low, Gradient>>, const GradientFactor&,
                          const void* coefficients);

/// Filled by `register_optimizer<Optimizer>()` of <distx/cuda_kernels.cuh>.
template <class Optimizer, class T, class Low, class Gradient>
inline constinit UpdateKernel<Optimizer, T, Low, Gradient>* update_slot = nullptr;

template <class Optimizer, class T, class Low, class Gradient>
[[noreturn]] void no_update_kernel() {
  const std::string here =
      distx::detail::plain_name(std::source_location::current().function_name());  // has the types' names
  no_kernel("fused_update",
            "; for LAMB, Muon or a custom optimizer write there: const bool registered = "
            "distx::cuda::register_optimizer<TheOptimizer>(); requested: " +
                here.substr(std::min(here.find('['), here.size())));
}

template <class Optimizer, class T, class Low, class Gradient>
void update(CudaStreamRef stream, std::span<const CudaPiece<Optimizer, T, Low, Gradient>> pieces,
            const GradientFactor& factor, const void* coefficients) {
  static_assert(std::same_as<T, Low> ? std::same_as<T, Gradient> : std::same_as<T, float> && sizeof(Low) == 2,
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
  const auto kernel = update_slot<Optimizer, T, Low, Gradient>;
  if (kernel == nullptr) [[unlikely]]
    no_update_kernel<Optimizer, T, Low, Gradient>();
  kernel(stream, pieces, factor, coefficients);
}

}  // namespace cuda::detail

namespace detail {

/// Enqueues the update of all pieces, in one launch for about 340 of them (40 with CUDA 12.0). None of the arrays
/// overlap, except that a piece's first state may be its gradient.
///
/// Each piece has the bits of `scale(stream, gradient, factor)` followed by `fused_update` of that piece; with masters,
/// of `cast` of the gradient to float, `scale`, `fused_update` and `cast` of the masters to Low.
/// @param coefficients  if not null, where in the GPU's memory the kernels read the coefficients of each piece that is
///   not empty, whenever they run, in place of the pieces' own
/// @throws InvalidArgument if the lengths of a piece's arrays differ
template <ElementwiseOptimizer Optimizer, FloatingElement T, FloatingElement Low, FloatingElement Gradient>
void fused_update(CudaStreamRef stream, std::span<const UpdatePiece<Cuda, Optimizer, T, Low, Gradient>> pieces,
                  const GradientFactor& factor = {}, const void* coefficients = nullptr) {
  cuda::detail::update(stream, pieces, factor, coefficients);
}

}  // namespace detail

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
  const cuda::detail::CudaPiece<Optimizer, T> piece{optimizer.template coefficients<accumulator_t<T>>(step), weight,
                                                    gradient, state};
  detail::fused_update(stream, std::span(&piece, 1));
}

/// The same, by the optimizer and the step of `step`, which the kernel reads in the GPU's memory, after at least one
/// `advance`. The GPU computes the optimizer's coefficients: its powers may differ from the host's in the last bits.
template <ElementwiseOptimizer Optimizer, FloatingElement T>
void fused_update(CudaStreamRef stream, const DeviceStep<Optimizer>& step, Span<T, Cuda> weight,
                  std::type_identity_t<Span<const T, Cuda>> gradient,
                  const std::array<Span<accumulator_t<T>, Cuda>, Optimizer::states>& state) {
  const cuda::detail::CudaPiece<Optimizer, T> piece{{}, weight, gradient, state};
  detail::fused_update(stream, std::span(&piece, 1), {}, step.template coefficients<accumulator_t<T>>());
}

}  // namespace distx::inline DISTX_ABI
