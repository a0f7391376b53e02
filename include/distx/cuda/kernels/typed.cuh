// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/cuda/detail/kernels.hpp"

namespace distx::inline DISTX_ABI::cuda::detail {

/// Calls f with a pointer to the span's elements as T, const if the span's are.
template <class T, class Any, class F>
void with_elements(Span<Any, Cuda> span, F&& f) {
  if constexpr (std::is_const_v<Any>)
    f(static_cast<const T*>(span.data()));
  else
    f(static_cast<T*>(span.data()));
}

/// Calls f with a pointer to the span's elements in their own type.
/// @pre the type is floating
template <class Any, class F>
void with_floating(Span<Any, Cuda> span, F&& f) {
  switch (span.type()) {
    case ElementType::f64:
      return with_elements<double>(span, f);
    case ElementType::bf16:
      return with_elements<bfloat16>(span, f);
    case ElementType::f16:
      return with_elements<float16>(span, f);
    default:
      return with_elements<float>(span, f);
  }
}

/// The same for 8-bit floats, too.
/// @pre the type is fractional
template <class Any, class F>
void with_fractional(Span<Any, Cuda> span, F&& f) {
  switch (span.type()) {
    case ElementType::f8e4m3:
      return with_elements<float8_e4m3>(span, f);
    case ElementType::f8e5m2:
      return with_elements<float8_e5m2>(span, f);
    default:
      return with_floating(span, f);
  }
}

}  // namespace distx::inline DISTX_ABI::cuda::detail
