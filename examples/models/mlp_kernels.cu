// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The model's own kernels; those of distx are in kernels.cu. One file may have both.
#include "mlp_kernels.hpp"

#include <distx/cuda/kernels/launch.cuh>

#include "mlp_operations.hpp"

namespace examples {

namespace {

/// The first element of this thread, and its stride.
__device__ std::size_t first() { return static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ std::size_t step() { return static_cast<std::size_t>(gridDim.x) * blockDim.x; }

__global__ void add_bias_to(float* values, std::size_t size, const float* bias, std::size_t columns, bool relu) {
  for (std::size_t i = first(); i < size; i += step()) {
    const float value = values[i] + bias[i % columns];
    values[i] = relu && value < 0 ? 0 : value;
  }
}

__global__ void clear_where_below(float* gradient, const float* output, std::size_t size) {
  for (std::size_t i = first(); i < size; i += step())
    if (!(output[i] > 0)) gradient[i] = 0;
}

__global__ void add_sums(float* sums, std::size_t columns, const float* values, std::size_t size) {
  for (std::size_t c = first(); c < columns; c += step()) {
    double sum = sums[c];
    for (std::size_t i = c; i < size; i += columns) sum += values[i];
    sums[c] = static_cast<float>(sum);
  }
}

__global__ void softmax_of_samples(const float* scores, std::size_t classes, const std::uint8_t* labels,
                                   std::size_t samples, float* losses, float* gradient) {
  for (std::size_t s = first(); s < samples; s += step())
    losses[s] = softmax_of_sample<float>(scores + s * classes, classes, labels[s], 1 / static_cast<double>(samples),
                                         gradient + s * classes);
}

template <class... Parameters, class... Arguments>
void launch(distx::CudaStreamRef stream, std::size_t elements, void (*kernel)(Parameters...),
            const Arguments&... arguments) {
  using distx::cuda::block_threads;
  if (elements > 0)
    distx::cuda::launch(stream, distx::cuda::blocks_for((elements + block_threads - 1) / block_threads, 8),
                        block_threads, kernel, arguments...);
}

}  // namespace

void add_bias(distx::CudaStreamRef stream, distx::Span<float, distx::Cuda> values,
              distx::Span<const float, distx::Cuda> bias, bool relu) {
  launch(stream, values.size(), add_bias_to, values.data(), values.size(), bias.data(), bias.size(), relu);
}
void relu_backward(distx::CudaStreamRef stream, distx::Span<float, distx::Cuda> gradient,
                   distx::Span<const float, distx::Cuda> output) {
  launch(stream, gradient.size(), clear_where_below, gradient.data(), output.data(), gradient.size());
}
void add_column_sums(distx::CudaStreamRef stream, distx::Span<float, distx::Cuda> sums,
                     distx::Span<const float, distx::Cuda> values) {
  launch(stream, sums.size(), add_sums, sums.data(), sums.size(), values.data(), values.size());
}
void softmax_cross_entropy(distx::CudaStreamRef stream, distx::Span<const float, distx::Cuda> scores,
                           distx::Span<const std::uint8_t, distx::Cuda> labels, distx::Span<float, distx::Cuda> losses,
                           distx::Span<float, distx::Cuda> gradient) {
  launch(stream, labels.size(), softmax_of_samples, scores.data(), scores.size() / labels.size(), labels.data(),
         labels.size(), losses.data(), gradient.data());
}

}  // namespace examples
