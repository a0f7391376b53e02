// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/cuda/elements.hpp"
#include "distx/cuda/kernels/operations.cuh"
#include "distx/tensor/ops/activations.hpp"
#include "distx/tensor/ops/arithmetic.hpp"

// Maps of tensors by functions of elements.
namespace distx::inline DISTX_ABI {

namespace cuda::detail {

template <class F, class T, class... Xs>
struct FunctionBody {
  F f;
  __device__ void operator()(T& out, const Xs&... xs) const { out = static_cast<T>(f(xs...)); }
};

template <class F, class T, class... Xs>
void enqueue_elements(CudaStreamRef stream, const F& f, Span<T, Cuda> out, Span<const Xs, Cuda>... xs) {
  for_each_element(stream, FunctionBody<F, T, Xs...>{f}, out.size(), Out<T>{out.data()}, In<Xs>{xs.data()}...);
}

}  // namespace cuda::detail

namespace cuda {

/// Compiles the kernel that maps a GPU's tensors by a custom function: `register_function<F, float, float, float>()`
/// for a result of float and two operands of float. Call it once at namespace scope of a file that nvcc compiles. F's
/// call operator is constexpr or __device__.
/// @return true
template <class F, class T, class... Xs>
bool register_function() noexcept {
  cuda::detail::elements_kernel<F, T, Xs...> = cuda::detail::enqueue_elements<F, T, Xs...>;
  return true;
}

}  // namespace cuda

namespace cuda::detail {

template <class T>
bool register_functions() noexcept {
  return register_function<distx::detail::elements::Relu, T, T>() &&
         register_function<distx::detail::elements::ReluBackward, T, T, T>() &&
         register_function<distx::detail::elements::Gelu<T>, T, T>() &&
         register_function<distx::detail::elements::GeluBackward<T>, T, T, T>() &&
         register_function<distx::detail::elements::Plus, T, T, T>() &&
         register_function<distx::detail::elements::Minus, T, T, T>() &&
         register_function<distx::detail::elements::Times, T, T, T>() &&
         register_function<distx::detail::elements::TimesFactor<T>, T, T>();
}
[[maybe_unused]] inline const bool has_functions = register_functions<float>() && register_functions<double>();

}  // namespace cuda::detail

}  // namespace distx::inline DISTX_ABI
