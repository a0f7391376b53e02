// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/cuda/elements.hpp"
#include "distx/cuda/launch.cuh"
#include "distx/tensor/activations.hpp"
#include "distx/tensor/arithmetic.hpp"

// Functions of elements, one thread for each element.
namespace distx {

namespace cuda {

template <class F, class T, class... Xs>
__global__ void for_each_element(const F f, std::size_t size, T* out, const Xs*... xs) {
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < size;
       i += static_cast<std::size_t>(gridDim.x) * blockDim.x)
    out[i] = static_cast<T>(f(xs[i]...));
}
template <class F, class T, class... Xs>
void launch_elements(CudaStreamRef stream, const F& f, Span<T, Cuda> out, Span<const Xs, Cuda>... xs) {
  launch(stream, blocks_for((out.size() + block_threads - 1) / block_threads, 8), block_threads,
         for_each_element<F, T, Xs...>, f, out.size(), out.data(), xs.data()...);
}

}  // namespace cuda

/// Lets tensors in a GPU's memory be mapped by a function of yours: `register_function<F, float, float, float>()` for
/// two operands and a result of floats, once, in the file that nvcc compiles. F's call operator is constexpr or
/// __device__.
template <class F, class T, class... Xs>
bool register_function() noexcept {
  cuda::elements_kernel<F, T, Xs...> = cuda::launch_elements<F, T, Xs...>;
  return true;
}

namespace cuda {

template <class T>
bool register_functions() noexcept {
  return register_function<elements::Relu, T, T>() && register_function<elements::ReluBackward, T, T, T>() &&
         register_function<elements::Gelu<T>, T, T>() && register_function<elements::GeluBackward<T>, T, T, T>() &&
         register_function<elements::Plus, T, T, T>() && register_function<elements::Minus, T, T, T>() &&
         register_function<elements::Times, T, T, T>() && register_function<elements::TimesFactor<T>, T, T>();
}
[[maybe_unused]] inline const bool has_functions = register_functions<float>() && register_functions<double>();

}  // namespace cuda

}  // namespace distx
