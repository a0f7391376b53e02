// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>

#include <distx/cuda.hpp>

// The operations of a perceptron other than matrix products, in GPU memory: the stream-ordered counterparts of the
// functions in mlp_operations.hpp. The kernels are in mlp_kernels.cu, which nvcc compiles.
namespace examples {

void add_bias(distx::CudaStreamRef stream, distx::Span<float, distx::Cuda> values,
              distx::Span<const float, distx::Cuda> bias, bool relu);
void relu_backward(distx::CudaStreamRef stream, distx::Span<float, distx::Cuda> gradient,
                   distx::Span<const float, distx::Cuda> output);
void add_column_sums(distx::CudaStreamRef stream, distx::Span<float, distx::Cuda> sums,
                     distx::Span<const float, distx::Cuda> values);
void softmax_cross_entropy(distx::CudaStreamRef stream, distx::Span<const float, distx::Cuda> scores,
                           distx::Span<const std::uint8_t, distx::Cuda> labels, distx::Span<float, distx::Cuda> losses,
                           distx::Span<float, distx::Cuda> gradient);

}  // namespace examples
