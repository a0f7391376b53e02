// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/cuda/detail/kernels.hpp"

// Maps of a GPU's elements, in stream order: the operation that `map` of tensors calls.
namespace distx::inline DISTX_ABI {

namespace cuda::detail {

/// Computes out[i] = f(xs[i], …). Set for distx's functions by distx/cuda_kernels.cuh, and for custom functions by
/// `register_function`.
template <class F, class T, class... Xs>
using ForElements = void(CudaStreamRef, const F&, Span<T, Cuda> out, Span<const Xs, Cuda>... xs);
template <class F, class T, class... Xs>
inline constinit ForElements<F, T, Xs...>* elements_kernel = nullptr;

}  // namespace cuda::detail

/// Enqueues out[i] = f(xs[i], …) for all i.
/// @throws InvalidState if the program has no kernel for this function and these element types
template <class F, class T, class... Xs>
void for_elements(CudaStreamRef stream, const F& f, Span<T, Cuda> out, Span<const Xs, Cuda>... xs) {
  const auto kernel = cuda::detail::elements_kernel<F, T, Xs...>;
  if (kernel == nullptr) [[unlikely]]
    cuda::detail::no_kernel("map", "; register a custom function there by distx::cuda::register_function");
  if (!out.empty()) kernel(stream, f, out, xs...);
}

}  // namespace distx::inline DISTX_ABI
