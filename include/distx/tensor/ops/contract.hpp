// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/memory/local_matmul.hpp"
#include "distx/tensor/ops/apply.hpp"
#include "distx/tensor/ops/rules.hpp"

// Products that sum over several dimensions, as weights per head need: (batch, length, width) times (width, 3, heads,
// size).
namespace distx::inline DISTX_ABI {

namespace detail {

template <class Missing>
consteval void check_contract() {
  constexpr bool x = Missing::operands[0].is_partial(), y = Missing::operands[1].is_partial();
  static_assert(supported_unless < Missing, x && y >,
                "distx: contract: both operands are Partial over one axis, and a product of sums is not the sum of "
                "the products; redistribute one of them to Replicated there");
  static_assert(supported_unless<Missing, x != y>,
                "distx: contract: one operand is Partial over an axis that shards the other, or with an op other "
                "than Sum; redistribute it to Replicated there");
  static_assert(supported_unless < Missing, !x && !y >,
                "distx: contract: the shards of the operands on one axis do not match; redistribute one of them to "
                "Replicated there");
}

}  // namespace detail

namespace ops {

/// @name Products over several dimensions
/// Local: no product communicates; computed or enqueued as `matmul`, by the memory space's own `local_matmul`.
/// Placements are those of `matmul` by analogy and listed in docs/rules.md: where an axis shards a dimension that is
/// summed over, in both operands, the result is Partial over it.
/// @throws InvalidArgument if the extents do not match, or the operands are on different meshes
/// @{

/// Returns x (m…, k…) times w (k…, n…), summed over the `K` dimensions k, which is (m…, n…).
template <std::size_t K, DistributedTensor X, DistributedTensor W>
[[nodiscard]] auto contract(const X& x, const W& w, std::source_location location = std::source_location::current()) {
  using Rule = rules::Contract<K>;
  detail::check_contract<detail::missing_case<Rule, X, W>>();
  constexpr std::size_t m = detail::rank_of<X> - K;
  return detail::multiplied<Rule>({"contract", location}, detail::LocalProduct(), m, x, {m}, w, {K});
}
/// Returns the gradient of x (m…, k…) in `contract<K>(x, w)`, from the gradient of the result (m…, n…) and w (k…, n…).
template <std::size_t K, DistributedTensor G, DistributedTensor W>
[[nodiscard]] auto contract_input(const G& gradient, const W& w,
                                  std::source_location location = std::source_location::current()) {
  using Rule = rules::ContractInput<K>;
  detail::check_contract<detail::missing_case<Rule, G, W>>();
  constexpr std::size_t m = detail::rank_of<G> + K - detail::rank_of<W>;
  return detail::multiplied<Rule>({"contract_input", location}, detail::LocalProduct(), m, gradient, {m}, w, {K, true});
}
/// Returns the gradient of w (k…, n…) in `contract<K>(x, w)`, from x (m…, k…) and the gradient of the result (m…, n…).
template <std::size_t K, DistributedTensor X, DistributedTensor G>
[[nodiscard]] auto contract_weight(const X& x, const G& gradient,
                                   std::source_location location = std::source_location::current()) {
  using Rule = rules::ContractWeight<K>;
  detail::check_contract<detail::missing_case<Rule, X, G>>();
  constexpr std::size_t m = detail::rank_of<X> - K;
  return detail::multiplied<Rule>({"contract_weight", location}, detail::LocalProduct(), K, x, {m, true}, gradient,
                                  {m});
}
/// @}

}  // namespace ops

}  // namespace distx::inline DISTX_ABI
