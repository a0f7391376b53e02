// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/core/span.hpp"
#include "distx/memory/operations.hpp"

namespace distx::inline DISTX_ABI::detail {

template <MemorySpace Space>
[[nodiscard]] Span<std::byte, Space> bytes_of(Span<AnyElement, Space> span) noexcept {
  return {span.bytes(), span.size_bytes()};
}

/// @pre the element type is float
template <MemorySpace Space>
[[nodiscard]] Span<float, Space> floats(Span<AnyElement, Space> span) noexcept {
  return {static_cast<float*>(span.data()), span.size()};
}

/// Returns the element type in which weights are updated and averaged.
[[nodiscard]] constexpr ElementType state_type(ElementType weight) noexcept {
  return weight == ElementType::f64 ? ElementType::f64 : ElementType::f32;
}

/// Calls f with the std::type_identity of a floating type. @pre it is one
template <class F>
decltype(auto) with_type(ElementType type, F&& f) {
  switch (type) {
    case ElementType::f64:
      return f(std::type_identity<double>());
    case ElementType::bf16:
      return f(std::type_identity<bfloat16>());
    case ElementType::f16:
      return f(std::type_identity<float16>());
    default:
      return f(std::type_identity<float>());
  }
}
/// Calls f with a span of the actual element type.
/// @pre it is a floating type
template <MemorySpace Space, class F>
decltype(auto) with_type(Span<AnyElement, Space> span, F&& f) {
  return with_type(span.type(), [&]<class T>(std::type_identity<T>) -> decltype(auto) {
    return f(Span<T, Space>(static_cast<T*>(span.data()), span.size()));
  });
}

/// to[i] += from[i].
/// @pre both are of one floating type and one length
template <MemorySpace Space>
void add_to(typename Space::stream stream, Span<AnyElement, Space> to,
            std::type_identity_t<Span<const AnyElement, Space>> from) {
  with_type(to, [&]<class T>(Span<T, Space> sum) {
    add(stream, sum, Span<const T, Space>(static_cast<const T*>(from.data()), from.size()));
  });
}

/// Converts each element.
/// @pre both are of floating types and one length
template <MemorySpace Space>
void cast_to(typename Space::stream stream, Span<AnyElement, Space> to, Span<AnyElement, Space> from) {
  with_type(to, [&](auto wanted) { with_type(from, [&](auto given) { cast(stream, wanted, given); }); });
}

}  // namespace distx::inline DISTX_ABI::detail
