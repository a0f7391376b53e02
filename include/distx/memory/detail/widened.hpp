// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/memory/operations.hpp"

// Floats shorter than float on their way through a reduction in several steps.
namespace distx::detail {

/// Calls f with a null pointer to elements of that type.
/// @pre is_narrow_float(type)
template <class F>
void with_narrow_float(ElementType type, F&& f) {
  switch (type) {
    case ElementType::f8e4m3:
      return f(static_cast<float8_e4m3*>(nullptr));
    case ElementType::f8e5m2:
      return f(static_cast<float8_e5m2*>(nullptr));
    case ElementType::bf16:
      return f(static_cast<bfloat16*>(nullptr));
    default:
      return f(static_cast<float16*>(nullptr));
  }
}

/// @pre `from` is of narrow floats, as many as there is room for at `to`
inline void widen(Span<const AnyElement> from, float* to) {
  with_narrow_float(from.type(), [&]<class T>(T*) {
    cast({}, Span(to, from.size()), Span(static_cast<const T*>(from.data()), from.size()));
  });
}
/// @pre `to` is of narrow floats, as many as there are at `from`
inline void narrow(const float* from, Span<AnyElement> to) {
  with_narrow_float(to.type(),
                    [&]<class T>(T*) { cast({}, Span(static_cast<T*>(to.data()), to.size()), Span(from, to.size())); });
}

}  // namespace distx::detail
