// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/ops/elementwise.hpp"

// Sums, differences, products and multiples, element by element.
namespace distx::inline DISTX_ABI {

namespace detail {

/// The arithmetic of one element, or of several at once.
namespace elements {

struct Plus {
  static constexpr bool on_lanes = true;
  template <class V>
  constexpr V operator()(V x, V y) const {
    return static_cast<V>(x + y);
  }
};
struct Minus {
  static constexpr bool on_lanes = true;
  template <class V>
  constexpr V operator()(V x, V y) const {
    return static_cast<V>(x - y);
  }
};
struct Times {
  static constexpr bool on_lanes = true;
  template <class V>
  constexpr V operator()(V x, V y) const {
    return static_cast<V>(x * y);
  }
};
template <class T>
struct TimesFactor {
  static constexpr bool on_lanes = true;
  T factor;
  template <class V>
  constexpr V operator()(V x) const {
    return static_cast<V>(x * V(factor));
  }
};

}  // namespace elements

/// Why two operands of an elementwise operation are not supported.
enum class PairFault { both_partial, one_partial, op, shards };

template <class Missing>
consteval PairFault pair_fault() {
  constexpr AxisPlacement x = Missing::operands[0], y = Missing::operands[1];
  if ((x.is_partial() && !x.is_sum()) || (y.is_partial() && !y.is_sum())) return PairFault::op;
  if (x.is_partial() && y.is_partial()) return PairFault::both_partial;
  return x.is_partial() || y.is_partial() ? PairFault::one_partial : PairFault::shards;
}

template <class Missing>
consteval void check_sum() {
  constexpr PairFault fault = pair_fault<Missing>();
  static_assert(supported_unless<Missing, fault == PairFault::one_partial>,
                "distx: add, subtract: one operand is Partial and the other is not, so the other would be counted once "
                "per rank; redistribute the one that is Partial first");
  static_assert(supported_unless<Missing, fault == PairFault::op>,
                "distx: add, subtract: an operand is Partial with an op other than Sum; redistribute it first");
  static_assert(supported_unless<Missing, fault == PairFault::shards>,
                "distx: add, subtract: one axis shards the operands differently; redistribute one to the other's "
                "layout");
}
template <class Missing>
consteval void check_multiply() {
  constexpr PairFault fault = pair_fault<Missing>();
  static_assert(supported_unless<Missing, fault == PairFault::both_partial>,
                "distx: multiply: both operands are Partial over one axis, and a product of sums is not the sum of the "
                "products; redistribute one of them to Replicated there");
  static_assert(supported_unless<Missing, fault == PairFault::one_partial>,
                "distx: multiply: one operand is Partial over an axis that shards the other; redistribute it to the "
                "other's layout");
  static_assert(supported_unless<Missing, fault == PairFault::op>,
                "distx: multiply: an operand is Partial with an op other than Sum; redistribute it first");
  static_assert(supported_unless<Missing, fault == PairFault::shards>,
                "distx: multiply: one axis shards the operands differently; redistribute one to the other's layout");
}

}  // namespace detail

namespace ops {

/// @name Arithmetic of elements
/// The operands have equal extents, and equal placements on each axis, which are the result's; the exceptions are
/// named. The result has the element type of `x`. Local, stream-ordered. In GPU memory for float and
/// double.
/// @throws InvalidArgument if the extents differ, or the operands are on different meshes
/// @{

/// Returns x + y. Both may be Partial over an axis; then so is the result.
template <DistributedTensor X, DistributedTensor Y>
[[nodiscard]] auto add(const X& x, const Y& y, std::source_location location = std::source_location::current()) {
  using Rule = rules::Add;
  detail::check_sum<detail::missing_case<Rule, X, Y>>();
  return detail::mapped<Rule>({"add", location}, detail::elements::Plus{}, x, y);
}
/// Returns x - y. Both may be Partial over an axis; then so is the result.
template <DistributedTensor X, DistributedTensor Y>
[[nodiscard]] auto subtract(const X& x, const Y& y, std::source_location location = std::source_location::current()) {
  using Rule = rules::Add;
  detail::check_sum<detail::missing_case<Rule, X, Y>>();
  return detail::mapped<Rule>({"subtract", location}, detail::elements::Minus{}, x, y);
}
/// Returns the products of elements at the same index. One operand may be Partial where the other is replicated; then
/// the result is Partial.
template <DistributedTensor X, DistributedTensor Y>
[[nodiscard]] auto multiply(const X& x, const Y& y, std::source_location location = std::source_location::current()) {
  using Rule = rules::Multiply;
  detail::check_multiply<detail::missing_case<Rule, X, Y>>();
  return detail::mapped<Rule>({"multiply", location}, detail::elements::Times{}, x, y);
}
/// Returns factor * x. `x` may be Partial; then so is the result.
template <DistributedTensor X>
[[nodiscard]] auto scale(const X& x, std::type_identity_t<detail::value_of<X>> factor,
                         std::source_location location = std::source_location::current()) {
  using Rule = rules::LinearElementwise;
  static_assert(detail::is_supported<detail::missing_case<Rule, X>>,
                "distx: scale: the operand is Partial with an op other than Sum; redistribute it first");
  return detail::mapped<Rule>({"scale", location}, detail::elements::TimesFactor<detail::value_of<X>>{factor}, x);
}
/// @}

}  // namespace ops

}  // namespace distx::inline DISTX_ABI
