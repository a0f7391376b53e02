// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/ops/bias.hpp"

// Broadcasting over leading dimensions, as a bias per head is added to every token: (batch, length, 3, heads, size)
// plus (3, heads, size).
namespace distx::inline DISTX_ABI {

namespace detail {

template <class Missing>
consteval void check_add_trailing() {
  constexpr bool partial = Missing::operands[0].is_partial() || Missing::operands[1].is_partial();
  static_assert(supported_unless<Missing, partial>,
                "distx: add_trailing: one operand is Partial and the other is not, or with an op other than Sum; "
                "redistribute it first");
  static_assert(supported_unless<Missing, !partial>,
                "distx: add_trailing: the second operand is not sharded as the last dimensions of the first; "
                "redistribute it to that layout");
}

}  // namespace detail

namespace ops {

/// Returns x (m…, n…) plus b (n…), added at each index of the leading dimensions m. Local, stream-ordered; in GPU
/// memory for float and double.
///
/// On each axis both are replicated, or both are sharded in the same dimension of n, or `x` is sharded in a dimension
/// of m and `b` is replicated, or both are Partial. The result has the extents and the layout of `x`.
/// @throws InvalidArgument if the extents do not match, or the operands are on different meshes
template <DistributedTensor X, DistributedTensor B>
[[nodiscard]] auto add_trailing(const X& x, const B& b,
                                std::source_location location = std::source_location::current()) {
  using Rule = rules::AddTrailing;
  detail::check_add_trailing<detail::missing_case<Rule, X, B>>();
  return detail::applied<Rule>(
      {"add_trailing", location},
      [](auto stream, auto each, auto added, auto out) {
        using detail::add_to_rows;
        constexpr std::size_t m = detail::rank_of<X> - detail::rank_of<B>;
        add_to_rows(stream, detail::as_matrix(each, m), added.values(), detail::as_matrix(out, m));
      },
      x, b);
}
/// Returns the sum of x (m…, n…) over all but its last `N` dimensions, (n…): the gradient of `b` in `add_trailing`.
/// Local, stream-ordered; in GPU memory for float and double.
///
/// Where `x` is Partial, or sharded in a dimension that is summed over, the result is Partial.
template <std::size_t N, DistributedTensor X>
[[nodiscard]] auto sum_leading(const X& x, std::source_location location = std::source_location::current()) {
  using Rule = rules::SumLeading<N>;
  static_assert(detail::is_supported<detail::missing_case<Rule, X>>,
                "distx: sum_leading: the operand is Partial with an op other than Sum; redistribute it first");
  return detail::sum_leading<Rule, N>({"sum_leading", location}, x);
}

}  // namespace ops

}  // namespace distx::inline DISTX_ABI
