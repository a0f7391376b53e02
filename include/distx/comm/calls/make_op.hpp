// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <optional>
#include <string>
#include <type_traits>

#include "distx/comm/calls/any_op.hpp"
#include "distx/core/error.hpp"

// Not in any_op.hpp: a program that includes it compiles every op for every element type.
namespace distx::inline DISTX_ABI {

namespace detail {

template <class Op, class... Types>
[[nodiscard]] std::optional<calls::AnyOp> op_for(ElementType type, const Op& op) noexcept {
  std::optional<calls::AnyOp> made;
  const auto try_type = [&]<class T>(std::type_identity<T>) {
    if constexpr (ReductionOp<Op, T>)
      if (type == element_type<T>) made = calls::AnyOp::make<T>(op);
  };
  (try_type(std::type_identity<Types>{}), ...);
  return made;
}

}  // namespace detail

namespace calls {

/// Returns the built-in op of a kind and an element type that are known at run time only, for a Call.
/// @throws InvalidArgument if the op cannot reduce elements of that type, or `kind` is `user`
[[nodiscard]] inline AnyOp make_op(OpKind kind, ElementType type) {
  const auto of = [type](const auto& op) {
    return detail::op_for<std::remove_cvref_t<decltype(op)>, std::int8_t, std::uint8_t, std::int16_t, std::uint16_t,
                          std::int32_t, std::uint32_t, std::int64_t, std::uint64_t, float8_e4m3, float8_e5m2, bfloat16,
                          float16, float, double>(type, op);
  };
  std::optional<AnyOp> op;
  const auto select = [&](const auto&... ops) { ((kind == ops.kind ? void(op = of(ops)) : void()), ...); };
  select(sum, product, min, max, average, bit_and, bit_or, bit_xor);
  if (op) return *op;
  throw InvalidArgument(std::string(name_of(kind)) + " does not reduce elements of type " + std::string(name_of(type)) +
                            ": averages are of floating-point elements, bitwise ops of integers",
                        {.operation = "make_op"});
}

}  // namespace calls

}  // namespace distx::inline DISTX_ABI
