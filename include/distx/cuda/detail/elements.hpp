// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/cuda/detail/kernels.hpp"

// Functions of elements in a GPU's memory: the operation by which tensors are mapped, in stream order.
namespace distx {

namespace cuda::detail {

/// Computes out[i] = f(xs[i]…): filled for a function and for types of elements by distx/cuda_kernels.cuh, and for
/// functions of yours by `register_function` in the same file.
template <class F, class T, class... Xs>
using ForElements = void(CudaStreamRef, const F&, Span<T, Cuda> out, Span<const Xs, Cuda>... xs);
template <class F, class T, class... Xs>
inline constinit ForElements<F, T, Xs...>* elements_kernel = nullptr;

}  // namespace cuda::detail

/// out[i] = f(xs[i]…).
/// @throws Error where the program has no kernel for this function and these elements
template <class F, class T, class... Xs>
void for_elements(CudaStreamRef stream, const F& f, Span<T, Cuda> out, Span<const Xs, Cuda>... xs) {
  const auto kernel = cuda::detail::elements_kernel<F, T, Xs...>;
  if (kernel == nullptr) [[unlikely]]
    cuda::detail::no_kernel("map",
                            "; a function other than distx's own is registered there by distx::register_function");
  if (!out.empty()) kernel(stream, f, out, xs...);
}

}  // namespace distx
