// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>

#include "distx/core/element.hpp"

namespace distx::inline DISTX_ABI {

/// The built-in reductions, and `user` for a custom op.
enum class OpKind : std::uint8_t { sum, product, min, max, average, user, bit_and, bit_or, bit_xor };

namespace detail {

/// The base of built-in ops.
template <OpKind Kind>
struct BuiltInOp {
  static constexpr OpKind kind = Kind;
  static constexpr bool commutative = true;
};

// Computed unsigned, so that overflow wraps as in MPI and NCCL instead of being undefined.
template <class T, class F>
constexpr T wrapping(T a, T b, F f) {
  if constexpr (std::integral<T>) {
    using Wide = std::conditional_t<(sizeof(T) < sizeof(unsigned)), unsigned, std::make_unsigned_t<T>>;
    return static_cast<T>(f(static_cast<Wide>(a), static_cast<Wide>(b)));
  } else {
    return f(a, b);
  }
}

// Computed without branches, so that compilers vectorize it. The two comparisons differ for zeros, of which `join`
// keeps the right sign. A NaN becomes the same one whichever operand holds it: the bits are independent of the order.
template <class T, class Before, class Join>
constexpr T extreme(T a, T b, Before before, Join join) {
  if constexpr (FractionalElement<T>) {
    using A = accumulator_t<T>;
    using Bits = bits_of_t<A>;
    const auto x = static_cast<A>(a), y = static_cast<A>(b);
    const Bits bits = join(std::bit_cast<Bits>(before(y, x) ? y : x), std::bit_cast<Bits>(before(x, y) ? x : y));
    return static_cast<T>(x != x || y != y ? std::numeric_limits<A>::quiet_NaN() : std::bit_cast<A>(bits));
  } else {
    return before(b, a) ? b : a;
  }
}

/// Combines the bits of integers.
template <OpKind Kind>
struct Bitwise : BuiltInOp<Kind> {
  template <std::integral T>
  constexpr T operator()(T a, T b) const {
    return static_cast<T>(Kind == OpKind::bit_and ? a & b : Kind == OpKind::bit_or ? a | b : a ^ b);
  }
};

}  // namespace detail

/// Adds; integers wrap around on overflow.
struct Sum : detail::BuiltInOp<OpKind::sum> {
  template <class T>
  constexpr T operator()(T a, T b) const {
    return detail::wrapping(a, b, [](auto x, auto y) { return x + y; });
  }
};

/// Multiplies; integers wrap around on overflow.
struct Product : detail::BuiltInOp<OpKind::product> {
  template <class T>
  constexpr T operator()(T a, T b) const {
    return detail::wrapping(a, b, [](auto x, auto y) { return x * y; });
  }
};

/// Selects the smaller value, as IEEE 754's minimum: a NaN of any operand gives the quiet NaN, and -0 is less than +0.
/// (NCCL's own minimum ignores a NaN where another rank has a number.)
struct Min : detail::BuiltInOp<OpKind::min> {
  template <class T>
  constexpr T operator()(T a, T b) const {
    return detail::extreme(a, b, [](auto x, auto y) { return x < y; }, [](auto x, auto y) { return x | y; });
  }
};

/// Selects the larger value, as IEEE 754's maximum: a NaN of any operand gives the quiet NaN, and +0 is more than -0.
/// (NCCL's own maximum ignores a NaN where another rank has a number.)
struct Max : detail::BuiltInOp<OpKind::max> {
  template <class T>
  constexpr T operator()(T a, T b) const {
    return detail::extreme(a, b, [](auto x, auto y) { return x > y; }, [](auto x, auto y) { return x & y; });
  }
};

/// Divides the sum by the number of ranks; for types that have fractions only.
struct Average : Sum {
  static constexpr OpKind kind = OpKind::average;
  template <class T>
  constexpr T finish(T sum, int ranks) const {
    return sum / static_cast<T>(ranks);
  }
};

/// The op of `all_reduce(comm, x, distx::sum)`.
inline constexpr Sum sum{};
/// The op of `all_reduce(comm, x, distx::product)`.
inline constexpr Product product{};
/// The op of `all_reduce(comm, x, distx::min)`.
inline constexpr Min min{};
/// The op of `all_reduce(comm, x, distx::max)`.
inline constexpr Max max{};
/// The op of `all_reduce(comm, x, distx::average)`, for floating-point elements.
inline constexpr Average average{};
/// The op of `all_reduce(comm, x, distx::bit_and)`, for integers.
inline constexpr detail::Bitwise<OpKind::bit_and> bit_and{};
/// The op of `all_reduce(comm, x, distx::bit_or)`, for integers.
inline constexpr detail::Bitwise<OpKind::bit_or> bit_or{};
/// The op of `all_reduce(comm, x, distx::bit_xor)`, for integers.
inline constexpr detail::Bitwise<OpKind::bit_xor> bit_xor{};

/// A callable that can reduce elements of type `T`.
///
/// The op is associative and combines two accumulators (`accumulator_t<T>`, which is float for reduced-precision types)
/// into one. It is trivially copyable and at most 16 bytes, because calls store it by value. Operands are combined in
/// rank order unless the op has `static constexpr bool commutative = true`. An optional member `finish(accumulator,
/// ranks)` runs once on each reduced element.
///
/// The op's type and state are the same on all ranks; a difference is a MismatchError. States are compared bitwise,
/// without their padding: 0.0 differs from -0.0, and an address from another process's, so capture by value. A compiler
/// that cannot clear padding (clang++ 16) compares a state only if its type has unique object representations or
/// consists of one value, such as a float.
template <class Op, class T>
concept ReductionOp = Element<T> && std::is_trivially_copyable_v<Op> && sizeof(Op) <= 16 && alignof(Op) <= 8 &&
                      requires(const Op& op, accumulator_t<T> a) {
                        { op(a, a) } -> std::convertible_to<accumulator_t<T>>;
                      } && (!std::derived_from<Op, Average> || FractionalElement<T>);

namespace detail {

template <class Op>
constexpr OpKind kind_of() {
  // Matches the exact types: a type derived from one of them may compute something else.
  if constexpr (std::same_as<Op, Sum> || std::same_as<Op, Product> || std::same_as<Op, Min> || std::same_as<Op, Max> ||
                std::same_as<Op, Average> || std::same_as<Op, Bitwise<OpKind::bit_and>> ||
                std::same_as<Op, Bitwise<OpKind::bit_or>> || std::same_as<Op, Bitwise<OpKind::bit_xor>>)
    return Op::kind;
  else
    return OpKind::user;
}

template <class Op>
constexpr bool is_commutative() {
  if constexpr (requires {
                  { Op::commutative } -> std::convertible_to<bool>;
                })
    return Op::commutative;
  else
    return false;
}

}  // namespace detail

constexpr std::string_view name_of(OpKind kind) {
  constexpr std::string_view names[] = {"sum",         "product", "min",    "max",    "average",
                                        "a user's op", "bit_and", "bit_or", "bit_xor"};
  return names[static_cast<std::size_t>(kind)];
}

}  // namespace distx::inline DISTX_ABI
