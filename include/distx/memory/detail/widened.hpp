// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/memory/operations.hpp"

// Conversion of floats of fewer than 32 bits for reductions in several steps, which accumulate in float.
namespace distx::inline DISTX_ABI::detail {

/// Calls `f` with a null pointer of the element type.
/// @pre is_narrow_float(type)
template <class F>
void with_narrow_float(ElementType type, F&& f) {
  if (type == ElementType::f8e4m3) return f(static_cast<float8_e4m3*>(nullptr));
  if (type == ElementType::f8e5m2) return f(static_cast<float8_e5m2*>(nullptr));
  if (type == ElementType::bf16) return f(static_cast<bfloat16*>(nullptr));
  return f(static_cast<float16*>(nullptr));
}

/// Converts narrow floats to float.
/// @pre is_narrow_float(from.type()), and `to` points to from.size() elements
inline void widen(Span<const AnyElement> from, float* to) {
  with_narrow_float(from.type(), [&]<class T>(T*) {
    cast({}, Span(to, from.size()), Span(static_cast<const T*>(from.data()), from.size()));
  });
}
/// Converts floats to narrow floats, rounding to nearest.
/// @pre is_narrow_float(to.type()), and `from` has to.size() elements
inline void narrow(const float* from, Span<AnyElement> to) {
  with_narrow_float(to.type(),
                    [&]<class T>(T*) { cast({}, Span(static_cast<T*>(to.data()), to.size()), Span(from, to.size())); });
}

}  // namespace distx::inline DISTX_ABI::detail
