// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/cuda/kernels.hpp"

namespace distx::cuda {

/// Calls f with a pointer to the span's elements as what they are.
/// @pre they are floating
template <class Any, class F>
void with_floating(Span<Any, Cuda> span, F&& f) {
  const auto as = [&]<class T>(T*) {
    if constexpr (std::is_const_v<Any>) f(static_cast<const T*>(span.data()));
    else f(static_cast<T*>(span.data()));
  };
  switch (span.type()) {
    case ElementType::f64: return as(static_cast<double*>(nullptr));
    case ElementType::bf16: return as(static_cast<bfloat16*>(nullptr));
    case ElementType::f16: return as(static_cast<float16*>(nullptr));
    default: return as(static_cast<float*>(nullptr));
  }
}

/// The same, 8-bit floats too.
/// @pre they have fractions
template <class Any, class F>
void with_fractional(Span<Any, Cuda> span, F&& f) {
  const auto as = [&]<class T>(T*) {
    if constexpr (std::is_const_v<Any>) f(static_cast<const T*>(span.data()));
    else f(static_cast<T*>(span.data()));
  };
  switch (span.type()) {
    case ElementType::f8e4m3: return as(static_cast<float8_e4m3*>(nullptr));
    case ElementType::f8e5m2: return as(static_cast<float8_e5m2*>(nullptr));
    default: return with_floating(span, std::forward<F>(f));
  }
}

}  // namespace distx::cuda
